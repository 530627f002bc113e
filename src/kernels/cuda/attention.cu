// Which attention kernels run, and the row sums that backward needs.
#include "attention.hpp"
#include "attention_args.cuh"
#include "attention_wgmma.hpp"

namespace potato::cuda {

namespace {

constexpr int sum_lanes = 8;  // threads a row
constexpr int sum_threads = 256;
constexpr int sum_rows = sum_threads / sum_lanes;

// row_sums [B, H, T] of dy · y, both [B·T, H·D]. A thread block takes 32 positions of one head, 8 threads a position.
// Reads 4 or 8 bytes an element, once; deterministic.
template <typename T>
__global__ void __launch_bounds__(sum_threads)
    row_sums_kernel(const T* dy, const T* y, float* row_sums, int sequence, int num_heads, int head_dim, int num_tiles,
                    bool is_vector) {
  const std::int64_t place = blockIdx.x / static_cast<unsigned>(num_tiles);  // sample · H + head
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(num_tiles));
  const int position = tile * sum_rows + static_cast<int>(threadIdx.x) / sum_lanes;
  const int lane = static_cast<int>(threadIdx.x) % sum_lanes;
  float sum = 0;
  if (position < sequence) {
    const std::int64_t row = place / num_heads * sequence + position;
    const std::int64_t offset = (row * num_heads + place % num_heads) * head_dim;
    if (is_vector) {
      constexpr int elems = vector_elems<T>;
      for (int d = lane * elems; d < head_dim; d += sum_lanes * elems) {
        const Pack<T, elems> a = load_pack<elems>(dy + offset + d);
        const Pack<T, elems> b = load_pack<elems>(y + offset + d);
#pragma unroll
        for (int i = 0; i < elems; ++i) sum = fmaf(a[i], b[i], sum);
      }
    } else {
      for (int d = lane; d < head_dim; d += sum_lanes) {
        sum = fmaf(to_float(dy[offset + d]), to_float(y[offset + d]), sum);
      }
    }
  }
#pragma unroll
  for (int distance = sum_lanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  }
  if (lane == 0 && position < sequence) row_sums[place * sequence + position] = sum;
}

template <typename T>
void compute_row_sums(const T* dy, const T* y, float* row_sums, const AttentionShape& s, Stream& stream) {
  const std::int64_t num_tiles = (s.sequence + sum_rows - 1) / sum_rows;
  const std::int64_t num_thread_blocks = num_tiles * s.batch * s.num_heads;
  PC_CHECK(num_thread_blocks < (std::int64_t{1} << 31), "attention over too many rows");
  const bool is_vector = s.head_dim % vector_elems<T> == 0 && is_aligned(dy, 16) && is_aligned(y, 16);
  launch(stream, dim3(static_cast<unsigned>(num_thread_blocks)), dim3(sum_threads), 0, row_sums_kernel<T>, dy, y,
         row_sums, static_cast<int>(s.sequence), static_cast<int>(s.num_heads), static_cast<int>(s.head_dim),
         static_cast<int>(num_tiles), is_vector);
}

// Whether the tensor core kernels have this head width.
constexpr bool fits_tensor_cores(DType dtype, const AttentionShape& s) {
  return dtype != DType::f32 && s.head_dim <= 128;
}

}  // namespace

void own_attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape,
                           Dropout dropout, TokenRows rows, Stream& stream) {
  if (y.num_elems() == 0) return;
  dispatch_device(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    AttentionArgs<T> args = attention_args<T>(qkv, shape, dropout, rows);
    args.y = data_of<T>(y);
    args.lse_out = data_of<float>(lse);
    if constexpr (!std::is_same_v<T, float>) {
      if (wgmma_attention_fits(args, stream)) return wgmma_attention_forward(args, shape, stream);
      if (fits_tensor_cores(qkv.dtype, shape)) return mma_attention_forward(args, shape, stream);
    }
    ffma_attention_forward(args, shape, stream);
  });
}

void own_attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                            TensorView dqkv, TensorView scratch, const AttentionShape& shape, Dropout dropout,
                            TokenRows rows, Stream& stream) {
  if (dy.num_elems() == 0) return;
  dispatch_device(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    AttentionArgs<T> args = attention_args<T>(qkv, shape, dropout, rows);
    args.dy = data_of<T>(dy);
    args.dqkv = data_of<T>(dqkv);
    args.lse = data_of<float>(lse);
    args.row_sums = data_of<float>(scratch);
    compute_row_sums(args.dy, data_of<T>(y), data_of<float>(scratch), shape, stream);
    if constexpr (!std::is_same_v<T, float>) {
      if (wgmma_attention_fits(args, stream)) return wgmma_attention_backward(args, shape, stream);
      if (fits_tensor_cores(qkv.dtype, shape)) return mma_attention_backward(args, shape, stream);
    }
    ffma_attention_backward(args, shape, stream);
  });
}

}  // namespace potato::cuda
