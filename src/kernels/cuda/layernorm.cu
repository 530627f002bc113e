// Rows of up to 16 packs a lane (4096 channels of 16 bits, 2048 of fp32) whose channels and addresses fit 16-byte
// accesses stay in registers: forward gives a warp a row, backward gives a group of warps two rows at a time. Others
// take the `any` kernels: a block a row, elements one by one. Elements moved: forward and apply 2, with a branch's end
// 4, backward 4. All deterministic: sums over a row and over rows have an order that depends on the shape alone.
#include <cuda_awbarrier_primitives.h>

#include <algorithm>
#include <cstring>

#include "common.cuh"
#include "dropout.hpp"
#include "elementwise.hpp"
#include "layernorm.hpp"

namespace potato::cuda {

namespace {

// Spelled out, so that forward and apply agree bitwise.
__device__ __forceinline__ float normed(float x, float mean, float rstd, float weight, float bias) {
  return __fmaf_rn(__fmul_rn(__fsub_rn(x, mean), rstd), weight, bias);
}

// A 16-byte pack that stays words: each use unpacks again, so that 16-bit rows take half the registers.
template <typename T>
struct Words {
  static constexpr int N = vector_elems<T>;
  unsigned words[4];

  __device__ __forceinline__ void load(const T* address) {
    const uint4 raw = *reinterpret_cast<const uint4*>(address);
    words[0] = raw.x;
    words[1] = raw.y;
    words[2] = raw.z;
    words[3] = raw.w;
  }
  __device__ __forceinline__ void set(const Pack<T, N>& pack) { memcpy(words, &pack, sizeof(words)); }
  __device__ __forceinline__ void clear() { words[0] = words[1] = words[2] = words[3] = 0; }
  // Keeps the compiler from holding on to what was unpacked before this point.
  __device__ __forceinline__ void forget() {
    asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
  }
  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000U);
    } else {
      return to_float(__ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16)));
    }
  }
};

// --- Forward ---

template <typename T>
struct ForwardArgs {
  const T* x;
  const T* weight;
  const T* bias;
  T* y;
  float* mean;
  float* rstd;
  std::int64_t num_rows;
  std::int64_t channels;
  float inverse_channels;
  float eps;
  // Only where the row is residual + dropout(x + branch_bias):
  const T* branch_bias;
  const T* residual;
  T* sum;
  DeviceDropout dropout;
  TokenRows rows;
};

constexpr int forward_warps = 4;

// values = the row's packs of this lane, pack p at channel (32 p + lane) · N; zeros past the end.
template <typename T, int P, bool has_branch>
__device__ __forceinline__ void load_row(const ForwardArgs<T>& args, std::int64_t row, int lane,
                                         Words<T> (&values)[P]) {
  constexpr int N = vector_elems<T>;
  Words<T> residual[has_branch ? P : 1];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int channel = (p * warp_lanes + lane) * N;
    if (channel < args.channels) {
      values[p].load(args.x + row * args.channels + channel);
      if constexpr (has_branch) residual[p].load(args.residual + row * args.channels + channel);
    } else {
      values[p].clear();
    }
  }
  if constexpr (has_branch) {
    const Token token = args.dropout.is_on ? token_of(args.rows, row) : Token{0, 0};
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int channel = (p * warp_lanes + lane) * N;
      if (channel >= args.channels) continue;
      float mask[N];
#pragma unroll
      for (int i = 0; i < N; ++i) mask[i] = 1;
      if (args.dropout.is_on) dropout_mask(args.dropout, token, channel, mask);
      const auto bias = load_elems<N>(args.branch_bias + channel);
      Pack<T, N> sum;
#pragma unroll
      for (int i = 0; i < N; ++i) sum.set(i, branch_sum(values[p][i], bias[i], residual[p][i], mask[i]));
      store_elems(args.sum + row * args.channels + channel, sum);
      values[p].set(sum);
    }
  }
}

// A warp a row, held in P packs a lane: one read, and the variance in a second pass over registers.
template <typename T, int P, bool has_branch>
__global__ void __launch_bounds__(forward_warps* warp_lanes) forward_kernel(const ForwardArgs<T> args) {
  constexpr int N = vector_elems<T>;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * forward_warps + static_cast<int>(threadIdx.x) / warp_lanes;
  if (row >= args.num_rows) return;  // whole warps
  Words<T> values[P];
  load_row<T, P, has_branch>(args, row, lane, values);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum += values[p][i];
  }
  const float mean = warp_reduce(sum) * args.inverse_channels;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if ((p * warp_lanes + lane) * N >= args.channels) continue;
    values[p].forget();
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (values[p][i] - mean) * (values[p][i] - mean);
  }
  const float rstd = 1 / sqrtf(warp_reduce(squares) * args.inverse_channels + args.eps);
  if (lane == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int channel = (p * warp_lanes + lane) * N;
    if (channel >= args.channels) continue;
    values[p].forget();
    const auto weight = load_elems<N>(args.weight + channel), bias = load_elems<N>(args.bias + channel);
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.set(i, normed(values[p][i], mean, rstd, weight[i], bias[i]));
    store_elems(args.y + row * args.channels + channel, out);
  }
}

constexpr int any_threads = 256;

// Any channels and alignment: a block a row, which is read three times (twice of them from a cache).
template <typename T>
__global__ void __launch_bounds__(any_threads) forward_any_kernel(const ForwardArgs<T> args) {
  __shared__ float shared[any_threads / warp_lanes];
  for (std::int64_t row = blockIdx.x; row < args.num_rows; row += gridDim.x) {
    const T* x = args.x + row * args.channels;
    T* y = args.y + row * args.channels;
    float sum = 0;
    for (std::int64_t c = threadIdx.x; c < args.channels; c += any_threads) sum += to_float(x[c]);
    const float mean = block_reduce(sum, shared) * args.inverse_channels;
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < args.channels; c += any_threads) {
      squares += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
    }
    const float rstd = 1 / sqrtf(block_reduce(squares, shared) * args.inverse_channels + args.eps);
    if (threadIdx.x == 0) {
      args.mean[row] = mean;
      args.rstd[row] = rstd;
    }
    for (std::int64_t c = threadIdx.x; c < args.channels; c += any_threads) {
      y[c] = from_float<T>(normed(to_float(x[c]), mean, rstd, to_float(args.weight[c]), to_float(args.bias[c])));
    }
  }
}

template <typename T>
constexpr std::int64_t most_row_channels = 16 * warp_lanes* vector_elems<T>;

// Needs rows that fit packs and most_row_channels.
template <typename T, bool has_branch>
void launch_forward(const ForwardArgs<T>& args, Stream& stream) {
  const dim3 grid(static_cast<unsigned>(narrow<int>((args.num_rows + forward_warps - 1) / forward_warps)));
  const dim3 block(forward_warps * warp_lanes);
  constexpr std::int64_t step = warp_lanes * vector_elems<T>;
  const std::int64_t packs = (args.channels + step - 1) / step;  // a lane
  if (packs <= 3) return launch(stream, grid, block, 0, forward_kernel<T, 3, has_branch>, args);
  if (packs <= 5) return launch(stream, grid, block, 0, forward_kernel<T, 5, has_branch>, args);
  if (packs <= 7) return launch(stream, grid, block, 0, forward_kernel<T, 7, has_branch>, args);
  launch(stream, grid, block, 0, forward_kernel<T, 16, has_branch>, args);
}

template <typename T>
ForwardArgs<T> forward_args(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
                            double eps, const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  ForwardArgs<T> args{};
  args.x = data_of<T>(x);
  args.weight = data_of<T>(weight);
  args.bias = data_of<T>(bias);
  args.y = data_of<T>(y);
  args.mean = data_of<float>(mean);
  args.rstd = data_of<float>(rstd);
  args.num_rows = x.dim(0);
  args.channels = x.dim(1);
  args.inverse_channels = static_cast<float>(1.0 / static_cast<double>(x.dim(1)));
  args.eps = static_cast<float>(eps);
  return args;
}

// --- Apply: by map_rows, see elementwise.hpp ---

template <typename T, int N>
struct Apply {
  static constexpr int num_inputs = 1;
  static constexpr bool has_sums = false;
  const T* inputs[num_inputs];
  const T* weight;
  const T* bias;
  const float* mean;
  const float* rstd;
  T* y;

  struct State {
    Pack<T, N> weight, bias;
  };
  __device__ __forceinline__ State begin(std::int64_t column, std::int64_t) const {
    return {load_elems<N>(weight + column), load_elems<N>(bias + column)};
  }
  __device__ __forceinline__ void apply(const State& state, std::int64_t row, std::int64_t offset, const Pack<T, N>* in,
                                        float*) const {
    const float row_mean = mean[row], row_rstd = rstd[row];
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.set(i, normed(in[0][i], row_mean, row_rstd, state.weight[i], state.bias[i]));
    store_elems(y + offset, out);
  }
};

// --- Backward ---

template <typename T>
struct BackwardArgs {
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  const T* residual_gradient;
  T* dx;
  float* partials;  // [blocks, 2 C]: each block's sums for weight, then for bias
  std::int64_t num_rows;
  std::int64_t channels;
  float inverse_channels;
};

constexpr int most_backward_threads = 512;
constexpr int rows_at_once = 2;

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// What a group's row sums need; a thread holds one pack of channels of each row.
template <typename T>
struct BackwardRows {
  static constexpr int N = vector_elems<T>;
  Words<T> dy[rows_at_once], x[rows_at_once], residual[rows_at_once];
  float mean[rows_at_once], rstd[rows_at_once];

  // Zeros where there is no such row or channel; they add nothing to any sum.
  __device__ __forceinline__ void load(const BackwardArgs<T>& args, std::int64_t first, std::int64_t channel) {
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
      const bool is_row = first + u < args.num_rows;
      if (is_row && channel < args.channels) {
        const std::int64_t offset = (first + u) * args.channels + channel;
        dy[u].load(args.dy + offset);
        x[u].load(args.x + offset);
        residual[u].load(args.residual_gradient + offset);
      } else {
        dy[u].clear();
        x[u].clear();
        residual[u].clear();
      }
      mean[u] = is_row ? args.mean[first + u] : 0.0F;
      rstd[u] = is_row ? args.rstd[first + u] : 0.0F;
    }
  }
  __device__ __forceinline__ float xhat(int u, int i) const { return (x[u][i] - mean[u]) * rstd[u]; }

  // Over this warp's channels: sums of g and g · xhat with g = dy · weight, for the first row and the second.
  __device__ __forceinline__ float4 warp_sums(const Words<T>& weight) const {
    float sum_g[rows_at_once] = {}, sum_gx[rows_at_once] = {};
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = dy[u][i] * weight[i];
        sum_g[u] += g;
        sum_gx[u] += g * xhat(u, i);
      }
    }
    return make_float4(warp_reduce(sum_g[0]), warp_reduce(sum_gx[0]), warp_reduce(sum_g[1]), warp_reduce(sum_gx[1]));
  }
};

// Waits for all threads of a barrier. In shared memory, not one of the hardware's numbered barriers: the race checker
// follows these.
__device__ __forceinline__ void meet(__mbarrier_t* barrier) {
  const __mbarrier_token_t token = __mbarrier_arrive(barrier);
  while (!__mbarrier_test_wait(barrier, token)) {
  }
}

// A block is blockDim.y groups of blockDim.x threads (whole warps) that go through the rows independently, two at a
// time; a thread of a group owns the same channels in every row, and so sums the parameters' gradients in registers. A
// group meets once for each two rows, at a barrier of its own. Two buffers: a warp can be one pair of rows ahead of
// another. 80 registers let 768 threads run on an SM.
template <typename T>
__global__ void __maxnreg__(80) backward_kernel(const BackwardArgs<T> args) {
  constexpr int N = vector_elems<T>;
  __shared__ float4 row_sums[2][most_backward_threads / warp_lanes];
  __shared__ __mbarrier_t barriers[most_backward_threads / warp_lanes];  // by group
  extern __shared__ float column_sums[];                                 // [groups, 2 C]
  const int group = static_cast<int>(threadIdx.y), group_threads = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int group_warps = group_threads / warp_lanes, first_warp = group * group_warps;
  const std::int64_t channel = static_cast<std::int64_t>(threadIdx.x) * N;
  const bool has_channels = channel < args.channels;
  if (threadIdx.x == 0) __mbarrier_init(&barriers[group], static_cast<unsigned>(group_threads));
  __syncthreads();
  Words<T> weight;
  weight.clear();
  if (has_channels) weight.load(args.weight + channel);
  float weight_sums[N] = {}, bias_sums[N] = {};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y * rows_at_once;
  int buffer = 0;
  for (std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.y + group) * rows_at_once;
       first < args.num_rows; first += step, buffer ^= 1) {
    BackwardRows<T> rows;
    rows.load(args, first, channel);
    weight.forget();
    const float4 warp_total = rows.warp_sums(weight);
    if (lane == 0) row_sums[buffer][first_warp + static_cast<int>(threadIdx.x) / warp_lanes] = warp_total;
    meet(&barriers[group]);
    float4 total = row_sums[buffer][first_warp];
    for (int w = 1; w < group_warps; ++w) total = total + row_sums[buffer][first_warp + w];
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
      rows.dy[u].forget();
      rows.x[u].forget();
      weight.forget();
      const float mean_g = (u == 0 ? total.x : total.z) * args.inverse_channels;
      const float mean_gx = (u == 0 ? total.y : total.w) * args.inverse_channels;
      Pack<T, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float xhat = rows.xhat(u, i), gradient = rows.dy[u][i];
        weight_sums[i] += gradient * xhat;
        bias_sums[i] += gradient;
        out.set(i, rows.residual[u][i] + rows.rstd[u] * (gradient * weight[i] - mean_g - xhat * mean_gx));
      }
      if (has_channels && first + u < args.num_rows) {
        store_elems(args.dx + (first + u) * args.channels + channel, out);
      }
    }
  }
  const std::int64_t width = 2 * args.channels;
  if (has_channels) {
    float* own = column_sums + group * width + channel;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      own[i] = weight_sums[i];
      own[args.channels + i] = bias_sums[i];
    }
  }
  __syncthreads();
  for (std::int64_t c = group * group_threads + static_cast<int>(threadIdx.x); c < width;
       c += group_threads * static_cast<int>(blockDim.y)) {
    float sum = column_sums[c];
    for (int g = 1; g < static_cast<int>(blockDim.y); ++g) sum += column_sums[g * width + c];  // groups in order
    args.partials[blockIdx.x * width + c] = sum;
  }
}

// Any channels and alignment: a block takes rows in turn and keeps its sums over rows in its partials, where a thread
// owns channels.
template <typename T>
__global__ void __launch_bounds__(any_threads) backward_any_kernel(const BackwardArgs<T> args) {
  __shared__ float shared[any_threads / warp_lanes];
  float* weight_sums = args.partials + blockIdx.x * 2 * args.channels;
  float* bias_sums = weight_sums + args.channels;
  for (std::int64_t row = blockIdx.x; row < args.num_rows; row += gridDim.x) {
    const std::int64_t first = row * args.channels;
    const float mean = args.mean[row], rstd = args.rstd[row];
    const bool is_first = row == blockIdx.x;
    float sum_g = 0, sum_gx = 0;
    for (std::int64_t c = threadIdx.x; c < args.channels; c += any_threads) {
      const float g = to_float(args.dy[first + c]) * to_float(args.weight[c]);
      sum_g += g;
      sum_gx += g * ((to_float(args.x[first + c]) - mean) * rstd);
    }
    const float mean_g = block_reduce(sum_g, shared) * args.inverse_channels;
    const float mean_gx = block_reduce(sum_gx, shared) * args.inverse_channels;
    for (std::int64_t c = threadIdx.x; c < args.channels; c += any_threads) {
      const float gradient = to_float(args.dy[first + c]), xhat = (to_float(args.x[first + c]) - mean) * rstd;
      const float g = gradient * to_float(args.weight[c]);
      const float residual = to_float(args.residual_gradient[first + c]);
      args.dx[first + c] = from_float<T>(residual + rstd * (g - mean_g - xhat * mean_gx));
      weight_sums[c] = (is_first ? 0 : weight_sums[c]) + gradient * xhat;
      bias_sums[c] = (is_first ? 0 : bias_sums[c]) + gradient;
    }
  }
}

// Returns the number of blocks; sets args.partials, where each leaves its sums.
template <typename T>
std::int64_t launch_backward(BackwardArgs<T>& args, bool in_registers, Stream& stream) {
  constexpr std::int64_t num_sms = 132;
  const auto partials_of = [&](std::int64_t blocks) {
    return static_cast<float*>(stream.workspace(blocks * 2 * args.channels * static_cast<std::int64_t>(sizeof(float))));
  };
  if (!in_registers) {
    const std::int64_t fitting =
        (std::int64_t{32} << 20) / (2 * args.channels * static_cast<std::int64_t>(sizeof(float)));
    const unsigned blocks = num_blocks(args.num_rows, 1, std::max<std::int64_t>(1, std::min(4 * num_sms, fitting)));
    args.partials = partials_of(blocks);
    launch(stream, dim3(blocks), dim3(any_threads), 0, backward_any_kernel<T>, args);
    return blocks;
  }
  // Groups fill blocks to 384 threads and blocks an SM to 768, which is what the registers allow.
  const std::int64_t packs = args.channels / vector_elems<T>;
  const auto group_threads = static_cast<unsigned>((packs + warp_lanes - 1) / warp_lanes * warp_lanes);
  const unsigned num_groups = std::max(1U, 384 / group_threads);
  const std::int64_t blocks_per_sm = std::max(1U, 768 / (group_threads * num_groups));
  const unsigned blocks = num_blocks(args.num_rows, rows_at_once * num_groups, num_sms * blocks_per_sm);
  args.partials = partials_of(blocks);
  const std::size_t shared_bytes = num_groups * 2 * static_cast<std::size_t>(args.channels) * sizeof(float);  // ≤ 32 KB
  launch(stream, dim3(blocks), dim3(group_threads, num_groups), shared_bytes, backward_kernel<T>, args);
  return blocks;
}

}  // namespace

void layernorm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, double eps, TensorView y,
                       TensorView mean, TensorView rstd, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = forward_args<T>(x, weight, bias, eps, y, mean, rstd);
    if (args.channels <= most_row_channels<T> && fits_packs<T>(args.channels, args.x, args.weight, args.bias, args.y)) {
      launch_forward<T, false>(args, stream);
    } else {
      launch(stream, dim3(num_blocks(args.num_rows, 1)), dim3(any_threads), 0, forward_any_kernel<T>, args);
    }
  });
}

void layernorm_apply(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, ConstTensorView mean,
                     ConstTensorView rstd, TensorView y, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x_ = data_of<T>(x);
    const T* w = data_of<T>(weight);
    const T* b = data_of<T>(bias);
    T* y_ = data_of<T>(y);
    const auto run = [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(Apply<T, N>{{x_}, w, b, data_of<float>(mean), data_of<float>(rstd), y_}, x.dim(0), x.dim(1),
                     nullptr, stream);
    };
    if (fits_packs<T>(x.dim(1), x_, w, b, y_)) {
      run(std::integral_constant<int, vector_elems<T>>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

void layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView weight, ConstTensorView mean,
                        ConstTensorView rstd, ConstTensorView residual_gradient, TensorView dx,
                        TensorView weight_gradient, TensorView bias_gradient, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t channels = x.dim(1);
    float* dw = data_of<float>(weight_gradient);
    float* db = data_of<float>(bias_gradient);
    BackwardArgs<T> args{};
    args.dy = data_of<T>(dy);
    args.x = data_of<T>(x);
    args.weight = data_of<T>(weight);
    args.mean = data_of<float>(mean);
    args.rstd = data_of<float>(rstd);
    args.residual_gradient = data_of<T>(residual_gradient);
    args.dx = data_of<T>(dx);
    args.num_rows = x.dim(0);
    args.channels = channels;
    args.inverse_channels = static_cast<float>(1.0 / static_cast<double>(channels));
    const bool in_registers = channels <= most_row_channels<T> &&
                              fits_packs<T>(channels, args.dy, args.x, args.weight, args.residual_gradient, args.dx);
    const std::int64_t blocks = launch_backward(args, in_registers, stream);
    add_column_sums(args.partials, blocks, 2 * channels, dw, channels, db, stream);
  });
}

void bias_dropout_add_layernorm_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                                        TensorView sum, Dropout dropout, TokenRows rows, ConstTensorView weight,
                                        ConstTensorView norm_bias, double eps, TensorView y, TensorView mean,
                                        TensorView rstd, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto args = forward_args<T>(x, weight, norm_bias, eps, y, mean, rstd);
    args.branch_bias = data_of<T>(bias);
    args.residual = data_of<T>(residual);
    args.sum = data_of<T>(sum);
    args.dropout = device_dropout(dropout);
    args.rows = rows;
    if (args.channels <= most_row_channels<T> && fits_packs<T>(args.channels, args.x, args.weight, args.bias, args.y,
                                                               args.branch_bias, args.residual, args.sum)) {
      launch_forward<T, true>(args, stream);
    } else {
      cuda::bias_dropout_add_forward(x, bias, residual, sum, dropout, rows, stream);
      cuda::layernorm_forward(sum, weight, norm_bias, eps, y, mean, rstd, stream);
    }
  });
}

}  // namespace potato::cuda
