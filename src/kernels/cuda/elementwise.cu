// Flat memory at copy speed: a block moves 4 accesses a thread, all loads before the stores. fill writes 1, convert and
// copy move 2, add_to 3, add_squared_norm reads 1 element each. All deterministic.
#include <cmath>

#include "common.cuh"
#include "elementwise.hpp"

namespace potato::cuda {

namespace {

constexpr int threads = 256;
constexpr int unroll = 4;

template <int N>
dim3 flat_grid(std::int64_t num_elems) {
  constexpr std::int64_t block_elems = threads * unroll * N;
  return dim3(static_cast<unsigned>(narrow<int>((num_elems + block_elems - 1) / block_elems)));
}

// The first element of access `u` of this thread.
template <int N>
__device__ __forceinline__ std::int64_t access(int u) {
  return (static_cast<std::int64_t>(blockIdx.x) * (threads * unroll) + u * threads + static_cast<int>(threadIdx.x)) * N;
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) fill_kernel(T* x, T value, std::int64_t num_elems) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.elems[i] = value;
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t first = access<N>(u);
    if (first + N <= num_elems) {
      store_elems(x + first, pack);
    } else {
#pragma unroll 1
      for (std::int64_t i = first; i < num_elems; ++i) x[i] = value;
    }
  }
}

template <typename T>
void fill_as(TensorView x, T value, Stream& stream) {
  constexpr int N = 16 / sizeof(T);
  T* p = static_cast<T*>(x.data);
  const std::int64_t n = x.num_elems();
  if (is_aligned(p, 16)) {
    launch(stream, flat_grid<N>(n), dim3(threads), 0, fill_kernel<T, N>, p, value, n);
  } else {
    launch(stream, flat_grid<1>(n), dim3(threads), 0, fill_kernel<T, 1>, p, value, n);
  }
}

template <typename To, typename From>
__device__ __forceinline__ To converted(From x) {
  if constexpr (std::is_same_v<From, double> || std::is_same_v<To, double>) {
    return static_cast<To>(x);
  } else {
    return from_float<To>(to_float(x));
  }
}

template <typename From, typename To, int N>
__global__ void __launch_bounds__(threads) convert_kernel(const From* x, To* y, std::int64_t num_elems) {
  Pack<From, N> in[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if (access<N>(u) + N <= num_elems) in[u] = load_elems<N>(x + access<N>(u));
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t first = access<N>(u);
    if (first + N <= num_elems) {
      Pack<To, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) out.elems[i] = converted<To>(in[u].elems[i]);
      store_elems(y + first, out);
    } else {
#pragma unroll 1
      for (std::int64_t i = first; i < num_elems; ++i) y[i] = converted<To>(x[i]);
    }
  }
}

template <typename From, typename To>
void convert_as(ConstTensorView source, TensorView destination, Stream& stream) {
  constexpr int N = 16 / std::max(sizeof(From), sizeof(To));  // 16 bytes of the wider one
  const auto* x = static_cast<const From*>(source.data);
  auto* y = static_cast<To*>(destination.data);
  const std::int64_t n = source.num_elems();
  if (is_aligned(x, 16) && is_aligned(y, 16)) {
    launch(stream, flat_grid<N>(n), dim3(threads), 0, convert_kernel<From, To, N>, x, y, n);
  } else {
    launch(stream, flat_grid<1>(n), dim3(threads), 0, convert_kernel<From, To, 1>, x, y, n);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) add_to_kernel(const T* x, T* y, std::int64_t num_elems) {
  Pack<T, N> a[unroll], b[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if (access<N>(u) + N > num_elems) continue;
    a[u] = load_elems<N>(x + access<N>(u));
    b[u] = load_elems<N>(y + access<N>(u));
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t first = access<N>(u);
    if (first + N <= num_elems) {
#pragma unroll
      for (int i = 0; i < N; ++i) b[u].set(i, b[u][i] + a[u][i]);
      store_elems(y + first, b[u]);
    } else {
#pragma unroll 1
      for (std::int64_t i = first; i < num_elems; ++i) y[i] = from_float<T>(to_float(y[i]) + to_float(x[i]));
    }
  }
}

// Sum of squares of a block's strided share of the packs, in four fp64 chains a thread. The number of blocks, so also
// the order of the sum, depends on num_elems alone. A single block adds to the result itself.
template <typename T, int N>
__global__ void __launch_bounds__(threads)
    squared_norm_kernel(const T* x, std::int64_t num_elems, double weight, double* partials, double* result) {
  __shared__ double shared[threads / warp_lanes];
  double sums[unroll] = {};
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * (threads * unroll * N);
  for (std::int64_t offset = 0; offset + access<N>(0) < num_elems; offset += stride) {
    Pack<T, N> in[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const std::int64_t first = offset + access<N>(u);
      if (first + N <= num_elems) {
        in[u] = load_elems<N>(x + first);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) in[u].elems[i] = first + i < num_elems ? x[first + i] : from_float<T>(0);
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const double value = static_cast<double>(in[u][i]);
        sums[u] += value * value;
      }
    }
  }
  const double total = block_reduce((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    *result += weight * total;
  } else {
    partials[blockIdx.x] = total;
  }
}

__global__ void __launch_bounds__(1024)
    add_partial_norms_kernel(const double* partials, int count, double weight, double* result) {
  __shared__ double shared[1024 / warp_lanes];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 1024) sum += partials[i];
  const double total = block_reduce(sum, shared);
  if (threadIdx.x == 0) *result += weight * total;
}

template <typename T, int N>
void launch_squared_norm(const T* x, std::int64_t num_elems, double weight, double* result, Stream& stream) {
  constexpr std::int64_t most_blocks = 132 * 8;
  const unsigned blocks = num_blocks(num_elems, threads * unroll * N, most_blocks);
  auto* partials = blocks == 1 ? nullptr : static_cast<double*>(stream.workspace(most_blocks * 8));
  launch(stream, dim3(blocks), dim3(threads), 0, squared_norm_kernel<T, N>, x, num_elems, weight, partials, result);
  if (blocks == 1) return;
  launch(stream, dim3(1), dim3(1024), 0, add_partial_norms_kernel, partials, static_cast<int>(blocks), weight, result);
}

// A block of 32 warps for 32 columns: warp w adds tiles w, w + 32, ..., then the warps' sums are added in order.
__global__ void __launch_bounds__(1024)
    column_sums_kernel(const float* partials, std::int64_t num_tiles, std::int64_t columns, float* first,
                       std::int64_t first_columns, float* second) {
  __shared__ float shared[warp_lanes][warp_lanes + 1];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_lanes + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t tile = warp; tile < num_tiles; tile += warp_lanes) sum += partials[tile * columns + column];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < warp_lanes; ++w) total += shared[w][lane];
  float* sums = column < first_columns ? first + column : second + (column - first_columns);
  *sums += total;
}

}  // namespace

void fill(TensorView x, double value, Stream& stream) {
  if (value == 0 && !std::signbit(value)) {
    PC_CUDA(cudaMemsetAsync(x.data, 0, static_cast<std::size_t>(x.num_bytes()), cuda_stream(stream)));
    return;
  }
  if (x.dtype == DType::f64) return fill_as<double>(x, value, stream);
  const auto single = static_cast<float>(value);
  if (x.dtype == DType::bf16) return fill_as<__nv_bfloat16>(x, __float2bfloat16(single), stream);
  if (x.dtype == DType::f16) return fill_as<__half>(x, __float2half(single), stream);
  PC_CHECK(x.dtype == DType::f32, "fill of ", dtype_name(x.dtype));
  fill_as<float>(x, single, stream);
}

void copy(ConstTensorView source, TensorView destination, Stream& stream) {
  PC_CUDA(cudaMemcpyAsync(destination.data, source.data, static_cast<std::size_t>(source.num_bytes()),
                          cudaMemcpyDeviceToDevice, cuda_stream(stream)));
}

void convert(ConstTensorView source, TensorView destination, Stream& stream) {
  if (source.dtype == DType::f64) return convert_as<double, float>(source, destination, stream);
  if (destination.dtype == DType::f64) return convert_as<float, double>(source, destination, stream);
  dispatch_device(source.dtype, [&](auto from) {
    dispatch_device(destination.dtype, [&](auto to) {
      if constexpr (!std::is_same_v<decltype(from), decltype(to)>) {
        convert_as<decltype(from), decltype(to)>(source, destination, stream);
      }
    });
  });
}

void add_to(ConstTensorView x, TensorView y, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = vector_elems<T>;
    const T* p = data_of<T>(x);
    T* q = data_of<T>(y);
    const std::int64_t n = x.num_elems();
    if (is_aligned(p, 16) && is_aligned(q, 16)) {
      launch(stream, flat_grid<N>(n), dim3(threads), 0, add_to_kernel<T, N>, p, q, n);
    } else {
      launch(stream, flat_grid<1>(n), dim3(threads), 0, add_to_kernel<T, 1>, p, q, n);
    }
  });
}

void add_squared_norm(ConstTensorView x, double weight, TensorView result, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* p = data_of<T>(x);
    auto* sum = result.as<double>();
    if (is_aligned(p, 16)) {
      launch_squared_norm<T, vector_elems<T>>(p, x.num_elems(), weight, sum, stream);
    } else {
      launch_squared_norm<T, 1>(p, x.num_elems(), weight, sum, stream);
    }
  });
}

void add_column_sums(const float* partials, std::int64_t num_tiles, std::int64_t columns, float* first,
                     std::int64_t first_columns, float* second, Stream& stream) {
  const auto blocks = static_cast<unsigned>(narrow<int>((columns + warp_lanes - 1) / warp_lanes));
  launch(stream, dim3(blocks), dim3(warp_lanes, warp_lanes), 0, column_sums_kernel, partials, num_tiles, columns, first,
         first_columns, second);
}

}  // namespace potato::cuda
