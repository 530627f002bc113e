// Backward attention on tensor cores, in two kernels without atomics: one by blocks of keys makes dk and dv, one by
// blocks of queries makes dq. Both compute the probabilities again from lse; that is 7 products instead of 5, but each
// result is summed by one warp in a fixed order, and nothing goes through shared memory on its way between products.
//
//   p = exp(scale · q·k − lse)     dv = (mask · p)ᵀ dy     ds = p · (mask · dy·v − row_sum)
//   dk = scale · dsᵀ q             dq = scale · ds k       mask: 0 or 1 / (1 − dropout)
#pragma once

#include "attention_tiles.cuh"

namespace potato::cuda {

template <int DP>
struct KeyGradientTile {
  static constexpr int mt = DP <= 64 ? 2 : 1;
  static constexpr int warp_keys = 16 * mt;
  static constexpr int keys = mma_warps * warp_keys;
  static constexpr int queries = 64;          // copied at once
  static constexpr int nt = mt == 2 ? 4 : 8;  // tiles of 8 queries in a product
  static constexpr int query_elems = queries * tile_stride<DP>;
  static constexpr int key_elems = keys * tile_stride<DP>;
  static constexpr std::size_t shared_bytes = 2 * (2 * key_elems + 4 * query_elems) + sizeof(float) * 4 * queries;
};

template <int DP>
struct QueryGradientTile {
  static constexpr int mt = 2;
  static constexpr int warp_queries = 16 * mt;
  static constexpr int queries = mma_warps * warp_queries;
  static constexpr int keys = DP <= 96 ? 64 : 32;  // copied at once
  static constexpr int nt = 4;                     // tiles of 8 keys in a product
  static constexpr bool holds_rows = DP <= 64;
  static constexpr int query_elems = queries * tile_stride<DP>;
  static constexpr int key_elems = keys * tile_stride<DP>;
  static constexpr std::size_t shared_bytes = 2 * (2 * query_elems + 4 * key_elems);
};

// Scores of 16·MT keys x 8·NT queries become (mask · p)ᵀ, and gradients, mask-less dy·v, become dsᵀ.
// `lse` and `row_sums` begin at this lane's first query; `diagonal`: this lane's first key − its first query.
template <bool DROPOUT, int MT, int NT, typename T>
__device__ __forceinline__ void softmax_backward_transposed(const AttentionArgs<T>& args, const HeadMask& mask,
                                                            int first_key, int first_query, const float* lse,
                                                            const float* row_sums, bool masked, int diagonal,
                                                            float (&scores)[MT][NT][4], float (&gradients)[MT][NT][4]) {
  constexpr float log2_e = 1.4426950408889634F;
  unsigned keep[MT][4];
  if constexpr (DROPOUT) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) draw_mask_transposed<NT>(mask, first_key + mt * 16, first_query, keep[mt]);
  }
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    const float2 column_lse = *reinterpret_cast<const float2*>(lse + nt * 8);
    const float2 column_sum = *reinterpret_cast<const float2*>(row_sums + nt * 8);
    const float shift[2] = {column_lse.x * log2_e, column_lse.y * log2_e};
    const float sum[2] = {column_sum.x, column_sum.y};
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float p = fast_exp2(fmaf(scores[mt][nt][i], args.scale_log2, -shift[i % 2]));
        if (masked && nt * 8 + i % 2 < diagonal + mt * 16 + i / 2 * 8) p = 0;
        float gradient = gradients[mt][nt][i];
        scores[mt][nt][i] = p;
        if constexpr (DROPOUT) {
          const bool is_kept = (keep[mt][i] >> (4 * nt) & 1U) != 0;
          gradient = is_kept ? gradient * args.dropout.scale : 0;
          if (!is_kept) scores[mt][nt][i] = 0;  // 1 / (1 − dropout) comes last
        }
        gradients[mt][nt][i] = p * (gradient - sum[i % 2]);
      }
    }
  }
}

// dk and dv of 64 or 128 keys of one key/value head: over all query heads of the group in order, and the queries that
// see the keys. Reads q, dy, lse, row sums once a block of keys (mostly from the L2 cache); writes dk, dv once.
// Deterministic.
template <typename T, int DP, bool DROPOUT>
__global__ void __launch_bounds__(mma_threads, 2) key_gradient_kernel(const AttentionArgs<T> args) {
  using Tile = KeyGradientTile<DP>;
  constexpr int mt_count = Tile::mt;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  T* keys = reinterpret_cast<T*>(shared_memory);                         // [keys, stride]
  T* values = keys + Tile::key_elems;                                    // [keys, stride]
  T* queries = values + Tile::key_elems;                                 // [2][64, stride]
  T* grads = queries + 2 * Tile::query_elems;                            // [2][64, stride], rows of dy
  float* lse = reinterpret_cast<float*>(grads + 2 * Tile::query_elems);  // [2][64]
  float* row_sums = lse + 2 * Tile::queries;                             // [2][64]
  const TilePlace place(args, args.num_kv_heads);
  const int first = place.tile * Tile::keys;
  const int num_rows = min(Tile::keys, args.sequence - first);
  const int first_head = place.head * args.group();
  const HeadRows<T> shared_head(args, place.sample, first_head);
  const int first_tile = args.causal ? first / Tile::queries : 0;
  const int tiles_per_head = (args.sequence + Tile::queries - 1) / Tile::queries - first_tile;
  const int num_steps = tiles_per_head * args.group();

  const auto load_queries = [&](int step) {
    const HeadRows<T> head(args, place.sample, first_head + step / tiles_per_head);
    const int row = (first_tile + step % tiles_per_head) * Tile::queries;
    const int rest = args.sequence - row;
    const int buffer = step % 2;
    load_tile<T, DP, Tile::queries>(args.qkv + head.query + static_cast<std::int64_t>(row) * args.qkv_elems,
                                    args.qkv_elems, rest, args.head_dim, args.is_vector,
                                    queries + buffer * Tile::query_elems);
    load_tile<T, DP, Tile::queries>(args.dy + head.output + static_cast<std::int64_t>(row) * args.y_elems, args.y_elems,
                                    rest, args.head_dim, args.is_vector, grads + buffer * Tile::query_elems);
    // Zeros beyond T make p = 1, of rows that are all zero.
    const int index = static_cast<int>(threadIdx.x) % Tile::queries;
    const bool is_sum = threadIdx.x >= Tile::queries;
    const float* from = (is_sum ? args.row_sums : args.lse) + head.stat + row;
    float* to = (is_sum ? row_sums : lse) + buffer * Tile::queries;
    copy_async<4>(shared_address(to + index), index < rest ? from + index : from, index < rest);
  };
  const std::int64_t offset = static_cast<std::int64_t>(first) * args.qkv_elems;
  load_tile<T, DP, Tile::keys>(args.qkv + shared_head.key + offset, args.qkv_elems, num_rows, args.head_dim,
                               args.is_vector, keys);
  load_tile<T, DP, Tile::keys>(args.qkv + shared_head.value + offset, args.qkv_elems, num_rows, args.head_dim,
                               args.is_vector, values);
  load_queries(0);

  T* warp_keys = keys + warp_index() * Tile::warp_keys * tile_stride<DP>;
  T* warp_values = values + warp_index() * Tile::warp_keys * tile_stride<DP>;
  const int warp_first = first + warp_index() * Tile::warp_keys;
  const LeftRows<DP, mt_count, false> left_keys(warp_keys);
  const LeftRows<DP, mt_count, false> left_values(warp_values);
  float dkeys[mt_count][DP / 8][4] = {};
  float dvalues[mt_count][DP / 8][4] = {};
  for (int step = 0; step < num_steps; ++step) {
    wait_for_copies();
    __syncthreads();
    if (step + 1 < num_steps) load_queries(step + 1);
    const int buffer = step % 2;
    const HeadMask mask(args, place.sample, first_head + step / tiles_per_head);
#pragma unroll 1
    for (int part = 0; part < Tile::queries; part += 8 * Tile::nt) {
      const int query = (first_tile + step % tiles_per_head) * Tile::queries + part;
      if (query >= args.sequence || (args.causal && query + 8 * Tile::nt - 1 < warp_first)) continue;
      const unsigned query_rows = shared_address(queries + buffer * Tile::query_elems + part * tile_stride<DP>);
      const unsigned grad_rows = shared_address(grads + buffer * Tile::query_elems + part * tile_stride<DP>);
      float scores[mt_count][Tile::nt][4];
      float gradients[mt_count][Tile::nt][4];
      multiply_rows<T>(left_keys, query_rows, scores);
      multiply_rows<T>(left_values, grad_rows, gradients);
      const int column = buffer * Tile::queries + part + lane_index() % 4 * 2;
      const bool masked = args.causal && query < warp_first + Tile::warp_keys - 1;
      const int diagonal = warp_first + lane_index() / 4 - query - lane_index() % 4 * 2;
      softmax_backward_transposed<DROPOUT>(args, mask, warp_first, query, lse + column, row_sums + column, masked,
                                           diagonal, scores, gradients);
      add_product<T, DP>(scores, grad_rows, dvalues);
      add_product<T, DP>(gradients, query_rows, dkeys);
    }
  }

  float key_factor[mt_count][2];
  float value_factor[mt_count][2];
#pragma unroll
  for (int mt = 0; mt < mt_count; ++mt) {
    key_factor[mt][0] = key_factor[mt][1] = args.scale;
    value_factor[mt][0] = value_factor[mt][1] = args.dropout.scale;
  }
  const std::int64_t warp_offset = static_cast<std::int64_t>(warp_first) * args.qkv_elems;
  const int rest = args.sequence - warp_first;
  store_rows<T, DP>(dkeys, key_factor, warp_keys, args.dqkv + shared_head.key + warp_offset, args.qkv_elems, rest,
                    args.head_dim, args.is_vector);
  store_rows<T, DP>(dvalues, value_factor, warp_values, args.dqkv + shared_head.value + warp_offset, args.qkv_elems,
                    rest, args.head_dim, args.is_vector);
}

// Scores of 16·MT queries x 8·NT keys and gradients dy·v become ds, in `gradients`. `query`, `key`: this lane's first.
template <bool DROPOUT, int MT, int NT, typename T>
__device__ __forceinline__ void softmax_backward(const AttentionArgs<T>& args, const HeadMask& mask, int first_query,
                                                 int first_key, const float (&shift)[MT][2],
                                                 const float (&row_sum)[MT][2], bool masked,
                                                 const float (&scores)[MT][NT][4], float (&gradients)[MT][NT][4]) {
  const int key = first_key + lane_index() % 4 * 2;
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
    unsigned keep[2];
    if constexpr (DROPOUT) draw_mask<NT>(mask, first_query + mt * 16, first_key, keep);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_query + lane_index() / 4 + mt * 16 + half * 8;
      const int last = (args.causal && row < args.sequence ? row : args.sequence - 1) - key;
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float p = fast_exp2(fmaf(scores[mt][nt][2 * half + e], args.scale_log2, -shift[mt][half]));
          if (masked && nt * 8 + e > last) p = 0;
          float gradient = gradients[mt][nt][2 * half + e];
          if constexpr (DROPOUT) {
            gradient = (keep[half] >> (4 * nt + e) & 1U) != 0 ? gradient * args.dropout.scale : 0;
          }
          gradients[mt][nt][2 * half + e] = p * (gradient - row_sum[mt][half]);
        }
      }
    }
  }
}

// dq of 128 queries of one head, over the keys that they see. Reads k and v once a block of queries (mostly from the L2
// cache), writes dq once. Deterministic.
template <typename T, int DP, bool DROPOUT>
__global__ void __launch_bounds__(mma_threads, 2) query_gradient_kernel(const AttentionArgs<T> args) {
  using Tile = QueryGradientTile<DP>;
  constexpr int mt_count = Tile::mt;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  T* queries = reinterpret_cast<T*>(shared_memory);  // [128, stride]
  T* grads = queries + Tile::query_elems;            // [128, stride], rows of dy
  T* keys = grads + Tile::query_elems;               // [2][keys, stride]
  T* values = keys + 2 * Tile::key_elems;            // [2][keys, stride]
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
    const int buffer = tile % 2 * Tile::key_elems;
    load_tile<T, DP, Tile::keys>(args.qkv + head.key + offset, args.qkv_elems, args.sequence - row, args.head_dim,
                                 args.is_vector, keys + buffer);
    load_tile<T, DP, Tile::keys>(args.qkv + head.value + offset, args.qkv_elems, args.sequence - row, args.head_dim,
                                 args.is_vector, values + buffer);
  };
  load_tile<T, DP, Tile::queries>(args.qkv + head.query + static_cast<std::int64_t>(first) * args.qkv_elems,
                                  args.qkv_elems, num_rows, args.head_dim, args.is_vector, queries);
  load_tile<T, DP, Tile::queries>(args.dy + head.output + static_cast<std::int64_t>(first) * args.y_elems, args.y_elems,
                                  num_rows, args.head_dim, args.is_vector, grads);
  load_keys(0);

  const int warp_row = warp_index() * Tile::warp_queries;
  const int warp_first = first + warp_row;
  T* warp_queries = queries + warp_row * tile_stride<DP>;
  LeftRows<DP, mt_count, Tile::holds_rows> left_queries(warp_queries);
  LeftRows<DP, mt_count, Tile::holds_rows> left_grads(grads + warp_row * tile_stride<DP>);
  float shift[mt_count][2];
  float row_sum[mt_count][2];
#pragma unroll
  for (int mt = 0; mt < mt_count; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_first + mt * 16 + half * 8 + lane_index() / 4;
      const bool valid = row < args.sequence;
      shift[mt][half] = valid ? args.lse[head.stat + row] * 1.4426950408889634F : 0.0F;
      row_sum[mt][half] = valid ? args.row_sums[head.stat + row] : 0.0F;
    }
  }
  float dqueries[mt_count][DP / 8][4] = {};
  for (int tile = 0; tile < num_key_tiles; ++tile) {
    wait_for_copies();
    __syncthreads();
    if (tile == 0) {
      left_queries.hold();
      left_grads.hold();
    }
    if (tile + 1 < num_key_tiles) load_keys(tile + 1);
    const int buffer = tile % 2 * Tile::key_elems;
#pragma unroll 1
    for (int part = 0; part < Tile::keys; part += 8 * Tile::nt) {
      const int key = tile * Tile::keys + part;
      if (key >= args.sequence || (args.causal && key > warp_first + Tile::warp_queries - 1)) continue;
      const unsigned key_rows = shared_address(keys + buffer + part * tile_stride<DP>);
      float scores[mt_count][Tile::nt][4];
      float gradients[mt_count][Tile::nt][4];
      multiply_rows<T>(left_queries, key_rows, scores);
      multiply_rows<T>(left_grads, shared_address(values + buffer + part * tile_stride<DP>), gradients);
      const bool masked = key + 8 * Tile::nt > args.sequence || (args.causal && key + 8 * Tile::nt - 1 > warp_first);
      softmax_backward<DROPOUT>(args, mask, warp_first, key, shift, row_sum, masked, scores, gradients);
      add_product<T, DP>(gradients, key_rows, dqueries);
    }
  }

  float factor[mt_count][2];
#pragma unroll
  for (int mt = 0; mt < mt_count; ++mt) factor[mt][0] = factor[mt][1] = args.scale;
  store_rows<T, DP>(dqueries, factor, warp_queries,
                    args.dqkv + head.query + static_cast<std::int64_t>(warp_first) * args.qkv_elems, args.qkv_elems,
                    args.sequence - warp_first, args.head_dim, args.is_vector);
}

}  // namespace potato::cuda
