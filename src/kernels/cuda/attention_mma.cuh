// Host side of the tensor core kernels: a head of width D runs in the kernel of the next width it has.
// attention_bf16.cu and attention_f16.cu instantiate it.
#pragma once

#include "attention_backward.cuh"
#include "attention_forward.cuh"

namespace potato::cuda {

// Calls body(integral_constant<int, DP>, bool_constant<dropout>).
template <typename Body>
void dispatch_width(std::int64_t head_dim, bool has_dropout, const Body& body) {
  const auto with_width = [&](auto width) {
    if (has_dropout) {
      body(width, std::true_type{});
    } else {
      body(width, std::false_type{});
    }
  };
  if (head_dim <= 64) {
    with_width(std::integral_constant<int, 64>{});
  } else if (head_dim <= 80) {
    with_width(std::integral_constant<int, 80>{});
  } else if (head_dim <= 96) {
    with_width(std::integral_constant<int, 96>{});
  } else {
    PC_CHECK(head_dim <= 128, "head width ", head_dim);
    with_width(std::integral_constant<int, 128>{});
  }
}

template <typename T>
void mma_attention_forward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream) {
  args.is_vector = shape.head_dim % 8 == 0 && is_aligned(args.qkv, 16) && is_aligned(args.y, 16);
  dispatch_width(shape.head_dim, args.dropout.is_on, [&](auto width, auto has_dropout) {
    constexpr int dp = decltype(width)::value;
    constexpr bool dropout = decltype(has_dropout)::value;
    using Tile = ForwardTile<dp, dropout>;
    const dim3 grid = set_tiles(args, shape.num_heads, shape, Tile::queries);
    launch_attention(stream, grid, mma_threads, Tile::shared_bytes, attention_forward_kernel<T, dp, dropout>, args);
  });
}

template <typename T>
void mma_attention_backward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream) {
  args.is_vector =
      shape.head_dim % 8 == 0 && is_aligned(args.qkv, 16) && is_aligned(args.dy, 16) && is_aligned(args.dqkv, 16);
  dispatch_width(shape.head_dim, args.dropout.is_on, [&](auto width, auto has_dropout) {
    constexpr int dp = decltype(width)::value;
    constexpr bool dropout = decltype(has_dropout)::value;
    using KeyTile = KeyGradientTile<dp>;
    using QueryTile = QueryGradientTile<dp>;
    dim3 grid = set_tiles(args, shape.num_kv_heads, shape, KeyTile::keys);
    launch_attention(stream, grid, mma_threads, KeyTile::shared_bytes, key_gradient_kernel<T, dp, dropout>, args);
    grid = set_tiles(args, shape.num_heads, shape, QueryTile::queries);
    launch_attention(stream, grid, mma_threads, QueryTile::shared_bytes, query_gradient_kernel<T, dp, dropout>, args);
  });
}

}  // namespace potato::cuda
