// Host side of the fp32 attention kernels. Tiles are smaller for wide heads, so that they fit the shared memory.
#include "attention_ffma.cuh"

namespace potato::cuda {

namespace {

template <typename T, int DP, int TILE>
void forward_width(AttentionArgs<T>& args, const AttentionShape& shape, Stream& stream) {
  using Tile = FfmaTile<DP, TILE>;
  const dim3 grid = set_tiles(args, shape.num_heads, shape, TILE);
  launch_attention(stream, grid, ffma_threads, sizeof(float) * (3 * Tile::elems + Tile::weight_elems),
                   ffma_forward_kernel<T, DP, TILE>, args);
}

template <typename T, int DP, int TILE>
void backward_width(AttentionArgs<T>& args, const AttentionShape& shape, Stream& stream) {
  using Tile = FfmaTile<DP, TILE>;
  dim3 grid = set_tiles(args, shape.num_kv_heads, shape, TILE);
  launch_attention(stream, grid, ffma_threads, sizeof(float) * (4 * Tile::elems + 2 * Tile::weight_elems),
                   ffma_key_gradient_kernel<T, DP, TILE>, args);
  grid = set_tiles(args, shape.num_heads, shape, TILE);
  launch_attention(stream, grid, ffma_threads, sizeof(float) * (4 * Tile::elems + Tile::weight_elems),
                   ffma_query_gradient_kernel<T, DP, TILE>, args);
}

}  // namespace

template <typename T>
void ffma_attention_forward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream) {
  constexpr std::size_t vector_bytes = 4 * sizeof(T);
  args.is_vector = shape.head_dim % 4 == 0 && is_aligned(args.qkv, vector_bytes) && is_aligned(args.y, vector_bytes);
  PC_CHECK(shape.head_dim <= 256, "head width ", shape.head_dim);
  if constexpr (std::is_same_v<T, float>) {  // narrow 16-bit heads have the tensor core kernels
    if (shape.head_dim <= 64) return forward_width<T, 64, 64>(args, shape, stream);
    if (shape.head_dim <= 128) return forward_width<T, 128, 64>(args, shape, stream);
  }
  forward_width<T, 256, 32>(args, shape, stream);
}

template <typename T>
void ffma_attention_backward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream) {
  constexpr std::size_t vector_bytes = 4 * sizeof(T);
  args.is_vector = shape.head_dim % 4 == 0 && is_aligned(args.qkv, vector_bytes) && is_aligned(args.dy, vector_bytes) &&
                   is_aligned(args.dqkv, vector_bytes);
  PC_CHECK(shape.head_dim <= 256, "head width ", shape.head_dim);
  if constexpr (std::is_same_v<T, float>) {
    if (shape.head_dim <= 64) return backward_width<T, 64, 64>(args, shape, stream);
    if (shape.head_dim <= 128) return backward_width<T, 128, 32>(args, shape, stream);
  }
  backward_width<T, 256, 32>(args, shape, stream);
}

template void ffma_attention_forward(AttentionArgs<float>, const AttentionShape&, Stream&);
template void ffma_attention_forward(AttentionArgs<__nv_bfloat16>, const AttentionShape&, Stream&);
template void ffma_attention_forward(AttentionArgs<__half>, const AttentionShape&, Stream&);
template void ffma_attention_backward(AttentionArgs<float>, const AttentionShape&, Stream&);
template void ffma_attention_backward(AttentionArgs<__nv_bfloat16>, const AttentionShape&, Stream&);
template void ffma_attention_backward(AttentionArgs<__half>, const AttentionShape&, Stream&);

}  // namespace potato::cuda
