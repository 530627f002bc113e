// Forward attention on tensor cores, after FlashAttention-2 (Dao, arXiv 2307.08691).
//
// A thread block takes 128 queries of one head, each of its 4 warps 32 of them, and goes through tiles of keys and
// values with the softmax kept up to date. The next tile is copied while this one is used. Reads q, k, v once a thread
// block (k and v mostly from the L2 cache), writes y once. Deterministic: no row depends on another thread block.
#pragma once

#include "attention_tiles.cuh"

namespace potato::cuda {

template <int DP, bool DROPOUT>
struct ForwardTile {
  static constexpr int mt = 2;
  static constexpr int warp_rows = 16 * mt;
  static constexpr int queries = mma_warps * warp_rows;
  static constexpr int keys = DP > 96 && DROPOUT ? 32 : 64;
  static constexpr int nt = keys / 8;
  static constexpr bool holds_queries = DP <= 64;
  static constexpr int tile_elems = keys * tile_stride<DP>;
  static constexpr std::size_t shared_bytes = 2 * (queries * tile_stride<DP> + 4 * tile_elems);
};

// Sets scores of keys that a query does not see to −inf. `key`: this lane's first key, `query`: its first query.
template <int MT, int NT>
__device__ __forceinline__ void mask_scores(float (&scores)[MT][NT][4], int query, int key, int sequence, bool causal) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + mt * 16 + half * 8;
      const int last = (causal && row < sequence ? row : sequence - 1) - key;
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        if (nt * 8 > last) scores[mt][nt][2 * half] = -INFINITY;
        if (nt * 8 + 1 > last) scores[mt][nt][2 * half + 1] = -INFINITY;
      }
    }
  }
}

// The running softmax of the warp's rows.
template <int DP, int MT>
struct OnlineSoftmax {
  float highest[MT][2];  // raw score
  float sum[MT][2];      // this lane's part

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      highest[mt][0] = highest[mt][1] = -INFINITY;
      sum[mt][0] = sum[mt][1] = 0;
    }
  }

  // Scores become exp(scale · (score − highest)); what was summed before is scaled to the new maximum.
  template <int NT>
  __device__ __forceinline__ void add(float (&scores)[MT][NT][4], float scale_log2, float (&out)[MT][DP / 8][4]) {
    float rescale[MT][2];
    add_scores(scores, scale_log2, rescale);
    scale_out(rescale, out);
  }

  // The same in two parts; `out` is not touched by the first.
  template <int NT>
  __device__ __forceinline__ void add_scores(float (&scores)[MT][NT][4], float scale_log2, float (&rescale)[MT][2]) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = highest[mt][half];
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          top = fmaxf(top, fmaxf(scores[mt][nt][2 * half], scores[mt][nt][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 2));
        const float shift = top * scale_log2;
        rescale[mt][half] = fast_exp2(highest[mt][half] * scale_log2 - shift);
        highest[mt][half] = top;
        float tile_sum = 0;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[mt][nt][2 * half + e];
            score = fast_exp2(fmaf(score, scale_log2, -shift));
            tile_sum += score;
          }
        }
        sum[mt][half] = fmaf(sum[mt][half], rescale[mt][half], tile_sum);
      }
    }
  }
  static __device__ __forceinline__ void scale_out(const float (&rescale)[MT][2], float (&out)[MT][DP / 8][4]) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int dt = 0; dt < DP / 8; ++dt) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[mt][dt][i] *= rescale[mt][i / 2];
      }
    }
  }

  // The whole sum of a row, in all four lanes of the row.
  __device__ __forceinline__ float row_sum(int mt, int half) const {
    float total = sum[mt][half];
    total += __shfl_xor_sync(0xFFFFFFFFU, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFFU, total, 2);
    return total;
  }
};

template <int MT, int NT>
__device__ __forceinline__ void drop_weights(const HeadMask& mask, int first_query, int first_key,
                                             float (&weights)[MT][NT][4]) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
    unsigned keep[2];
    draw_mask<NT>(mask, first_query + mt * 16, first_key, keep);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((keep[i / 2] >> (4 * nt + i % 2) & 1U) == 0) weights[mt][nt][i] = 0;
      }
    }
  }
}

template <typename T, int DP, bool DROPOUT>
__global__ void __launch_bounds__(mma_threads, 2) attention_forward_kernel(const AttentionArgs<T> args) {
  using Tile = ForwardTile<DP, DROPOUT>;
  constexpr int mt_count = Tile::mt;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  T* queries = reinterpret_cast<T*>(shared_memory);     // [128, stride]
  T* keys = queries + Tile::queries * tile_stride<DP>;  // [2][keys, stride]
  T* values = keys + 2 * Tile::tile_elems;              // [2][keys, stride]
  const TilePlace place(args, args.num_heads);
  const HeadRows<T> head(args, place.sample, place.head);
  const HeadMask mask(args, place.sample, place.head);
  // Causal: the last queries see most keys, and start first.
  const int first = (args.causal ? args.num_tiles - 1 - place.tile : place.tile) * Tile::queries;
  const int num_rows = min(Tile::queries, args.sequence - first);
  const int num_key_tiles = ((args.causal ? first + num_rows : args.sequence) + Tile::keys - 1) / Tile::keys;

  const auto load_keys = [&](int tile) {
    const int row = tile * Tile::keys;
    const std::int64_t offset = static_cast<std::int64_t>(row) * args.qkv_elems;
    const int buffer = tile % 2 * Tile::tile_elems;
    load_tile<T, DP, Tile::keys>(args.qkv + head.key + offset, args.qkv_elems, args.sequence - row, args.head_dim,
                                 args.is_vector, keys + buffer);
    load_tile<T, DP, Tile::keys>(args.qkv + head.value + offset, args.qkv_elems, args.sequence - row, args.head_dim,
                                 args.is_vector, values + buffer);
  };
  load_tile<T, DP, Tile::queries>(args.qkv + head.query + static_cast<std::int64_t>(first) * args.qkv_elems,
                                  args.qkv_elems, num_rows, args.head_dim, args.is_vector, queries);
  load_keys(0);

  T* warp_queries = queries + warp_index() * Tile::warp_rows * tile_stride<DP>;
  const int warp_first = first + warp_index() * Tile::warp_rows;
  LeftRows<DP, mt_count, Tile::holds_queries> left(warp_queries);
  OnlineSoftmax<DP, mt_count> softmax;
  float out[mt_count][DP / 8][4] = {};
  for (int tile = 0; tile < num_key_tiles; ++tile) {
    wait_for_copies();
    __syncthreads();
    if (tile == 0) left.hold();
    if (tile + 1 < num_key_tiles) load_keys(tile + 1);
    const int key = tile * Tile::keys;
    if (args.causal && key > warp_first + Tile::warp_rows - 1) continue;
    const int buffer = tile % 2 * Tile::tile_elems;
    float scores[mt_count][Tile::nt][4];
    multiply_rows<T>(left, shared_address(keys + buffer), scores);
    if (key + Tile::keys > args.sequence || (args.causal && key + Tile::keys - 1 > warp_first)) {
      mask_scores(scores, warp_first + lane_index() / 4, key + lane_index() % 4 * 2, args.sequence, args.causal);
    }
    softmax.add(scores, args.scale_log2, out);
    if constexpr (DROPOUT) drop_weights(mask, warp_first, key, scores);
    add_product<T, DP>(scores, shared_address(values + buffer), out);
  }

  float factor[mt_count][2];
#pragma unroll
  for (int mt = 0; mt < mt_count; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax.row_sum(mt, half);
      const int row = warp_first + mt * 16 + half * 8 + lane_index() / 4;
      factor[mt][half] = args.dropout.scale / sum;
      if (lane_index() % 4 == 0 && row < args.sequence) {
        args.lse_out[head.stat + row] = softmax.highest[mt][half] * args.scale + logf(sum);
      }
    }
  }
  store_rows<T, DP>(out, factor, warp_queries,
                    args.y + head.output + static_cast<std::int64_t>(warp_first) * args.y_elems, args.y_elems,
                    args.sequence - warp_first, args.head_dim, args.is_vector);
}

}  // namespace potato::cuda
