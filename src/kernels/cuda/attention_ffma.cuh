// Attention in plain fp32 arithmetic (no TF32), for fp32 and for heads too wide for the tensor core kernels.
//
// 256 threads as 16 x 16: thread (ty, tx) owns rows R·ty to R·ty + R − 1 of a tile, columns tx + 16·j of scores, and
// columns 4·tx + 64·j of results. Tiles [TILE, DP + 4] of floats in shared memory, D padded with zeros to DP. The 16
// threads of a row are half a warp, so the weights of a row pass through shared memory within a warp. Same split of the
// work, traffic and order of sums as the tensor core kernels; deterministic.
#pragma once

#include "attention_args.cuh"

namespace potato::cuda {

constexpr int ffma_threads = 256;

template <int DP, int TILE>
struct FfmaTile {
  static constexpr int rows = TILE / 16;  // of a thread, and its columns of scores
  static constexpr int columns = DP / 16;
  static constexpr int stride = DP + 4;
  static constexpr int elems = TILE * stride;
  static constexpr int weight_stride = TILE + 4;
  static constexpr int weight_elems = TILE * weight_stride;
};

__device__ __forceinline__ int thread_row() { return static_cast<int>(threadIdx.x) / 16; }
__device__ __forceinline__ int thread_column() { return static_cast<int>(threadIdx.x) % 16; }

// Rows of a head to a tile; zeros beyond `num_rows` and beyond D.
template <typename T, int DP, int TILE>
__device__ __forceinline__ void load_floats(const T* rows, int row_elems, int num_rows, int head_dim, bool is_vector,
                                            float* tile) {
  for (int index = static_cast<int>(threadIdx.x); index < TILE * DP / 4; index += ffma_threads) {
    const int row = index / (DP / 4);
    const int column = index % (DP / 4) * 4;
    float4 out = make_float4(0, 0, 0, 0);
    if (row < num_rows && column < head_dim) {
      const T* from = rows + row * row_elems + column;
      if (is_vector) {
        const Pack<T, 4> pack = load_pack<4>(from);
        out = make_float4(pack[0], pack[1], pack[2], pack[3]);
      } else {
        out.x = to_float(from[0]);
        if (column + 1 < head_dim) out.y = to_float(from[1]);
        if (column + 2 < head_dim) out.z = to_float(from[2]);
        if (column + 3 < head_dim) out.w = to_float(from[3]);
      }
    }
    *reinterpret_cast<float4*>(tile + row * FfmaTile<DP, TILE>::stride + column) = out;
  }
}

// acc = this thread's part of left · rightᵀ, both tiles.
template <int DP, int TILE>
__device__ __forceinline__ void dot_rows(const float* left, const float* right, float (&acc)[TILE / 16][TILE / 16]) {
  using Tile = FfmaTile<DP, TILE>;
  constexpr int r = Tile::rows;
#pragma unroll
  for (int i = 0; i < r; ++i) {
#pragma unroll
    for (int j = 0; j < r; ++j) acc[i][j] = 0;
  }
#pragma unroll 2
  for (int d = 0; d < DP; d += 4) {
    float4 a[r];
    float4 b[r];
#pragma unroll
    for (int i = 0; i < r; ++i) {
      a[i] = *reinterpret_cast<const float4*>(left + (thread_row() * r + i) * Tile::stride + d);
      b[i] = *reinterpret_cast<const float4*>(right + (thread_column() + 16 * i) * Tile::stride + d);
    }
#pragma unroll
    for (int i = 0; i < r; ++i) {
#pragma unroll
      for (int j = 0; j < r; ++j) {
        acc[i][j] = fmaf(a[i].x, b[j].x, acc[i][j]);
        acc[i][j] = fmaf(a[i].y, b[j].y, acc[i][j]);
        acc[i][j] = fmaf(a[i].z, b[j].z, acc[i][j]);
        acc[i][j] = fmaf(a[i].w, b[j].w, acc[i][j]);
      }
    }
  }
}

// acc += this thread's part of weights [TILE, TILE] · rows, both in shared memory.
template <int DP, int TILE>
__device__ __forceinline__ void add_rows(const float* weights, const float* rows, float (&acc)[TILE / 16][DP / 16]) {
  using Tile = FfmaTile<DP, TILE>;
#pragma unroll 1
  for (int k = 0; k < TILE; k += 4) {
    float w[Tile::rows][4];
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i) {
      *reinterpret_cast<float4*>(w[i]) =
          *reinterpret_cast<const float4*>(weights + (thread_row() * Tile::rows + i) * Tile::weight_stride + k);
    }
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
      for (int j = 0; j < Tile::columns / 4; ++j) {
        const float4 v =
            *reinterpret_cast<const float4*>(rows + (k + kk) * Tile::stride + 4 * thread_column() + 64 * j);
#pragma unroll
        for (int i = 0; i < Tile::rows; ++i) {
          acc[i][4 * j] = fmaf(w[i][kk], v.x, acc[i][4 * j]);
          acc[i][4 * j + 1] = fmaf(w[i][kk], v.y, acc[i][4 * j + 1]);
          acc[i][4 * j + 2] = fmaf(w[i][kk], v.z, acc[i][4 * j + 2]);
          acc[i][4 * j + 3] = fmaf(w[i][kk], v.w, acc[i][4 * j + 3]);
        }
      }
    }
  }
}

// This thread's part of weights to shared memory.
template <int TILE>
__device__ __forceinline__ void put_weights(const float (&acc)[TILE / 16][TILE / 16], float* weights) {
  constexpr int r = TILE / 16;
#pragma unroll
  for (int i = 0; i < r; ++i) {
#pragma unroll
    for (int j = 0; j < r; ++j) {
      weights[(thread_row() * r + i) * (TILE + 4) + thread_column() + 16 * j] = acc[i][j];
    }
  }
}

// This thread's part of a result, each row times its factor, to rows of a head.
template <typename T, int R, int C>
__device__ __forceinline__ void write_rows(const float (&acc)[R][C], const float (&factor)[R], T* rows, int row_elems,
                                           int num_rows, int head_dim, bool is_vector) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int row = thread_row() * R + i;
    if (row >= num_rows) continue;
#pragma unroll
    for (int j = 0; j < C / 4; ++j) {
      const int column = 4 * thread_column() + 64 * j;
      T* to = rows + row * row_elems + column;
      if (is_vector) {
        Pack<T, 4> pack;
#pragma unroll
        for (int e = 0; e < 4; ++e) pack.set(e, acc[i][4 * j + e] * factor[i]);
        if (column < head_dim) store_pack(to, pack);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (column + e < head_dim) to[e] = from_float<T>(acc[i][4 * j + e] * factor[i]);
        }
      }
    }
  }
}

// Over the 16 threads of a row.
template <typename Op>
__device__ __forceinline__ float row_reduce(float value, Op op) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(0xFFFFFFFFU, value, distance));
  }
  return value;
}

// TILE queries of one head.
template <typename T, int DP, int TILE>
__global__ void __launch_bounds__(ffma_threads) ffma_forward_kernel(const AttentionArgs<T> args) {
  using Tile = FfmaTile<DP, TILE>;
  constexpr int r = Tile::rows;
  extern __shared__ __align__(16) float shared_floats[];
  float* queries = shared_floats;
  float* keys = queries + Tile::elems;
  float* values = keys + Tile::elems;
  float* weights = values + Tile::elems;
  const TilePlace place(args, args.num_heads);
  const HeadRows<T> head(args, place.sample, place.head);
  const HeadMask mask(args, place.sample, place.head);
  const int first = (args.causal ? args.num_tiles - 1 - place.tile : place.tile) * TILE;
  const int end = args.causal ? min(first + TILE, args.sequence) : args.sequence;
  load_floats<T, DP, TILE>(args.qkv + head.query + static_cast<std::int64_t>(first) * args.qkv_elems, args.qkv_elems,
                           args.sequence - first, args.head_dim, args.is_vector, queries);
  float out[r][Tile::columns] = {};
  float highest[r];
  float sum[r] = {};
#pragma unroll
  for (int i = 0; i < r; ++i) highest[i] = -INFINITY;
  for (int key = 0; key < end; key += TILE) {
    const std::int64_t offset = static_cast<std::int64_t>(key) * args.qkv_elems;
    __syncthreads();
    load_floats<T, DP, TILE>(args.qkv + head.key + offset, args.qkv_elems, args.sequence - key, args.head_dim,
                             args.is_vector, keys);
    load_floats<T, DP, TILE>(args.qkv + head.value + offset, args.qkv_elems, args.sequence - key, args.head_dim,
                             args.is_vector, values);
    __syncthreads();
    float scores[r][r];
    dot_rows<DP, TILE>(queries, keys, scores);
#pragma unroll
    for (int i = 0; i < r; ++i) {
      const int row = first + thread_row() * r + i;
      const int last = args.causal && row < args.sequence ? row : args.sequence - 1;
      float top = highest[i];
#pragma unroll
      for (int j = 0; j < r; ++j) {
        const bool is_seen = key + thread_column() + 16 * j <= last;
        scores[i][j] = is_seen ? scores[i][j] * args.scale : -INFINITY;
        top = fmaxf(top, scores[i][j]);
      }
      top = row_reduce(top, Max{});
      const float rescale = expf(highest[i] - top);
      highest[i] = top;
      float tile_sum = 0;
#pragma unroll
      for (int j = 0; j < r; ++j) {
        scores[i][j] = expf(scores[i][j] - top);
        tile_sum += scores[i][j];
        if (args.dropout.is_on && !mask.keeps(row, key + thread_column() + 16 * j)) scores[i][j] = 0;
      }
      sum[i] = fmaf(sum[i], rescale, tile_sum);
#pragma unroll
      for (int j = 0; j < Tile::columns; ++j) out[i][j] *= rescale;
    }
    put_weights<TILE>(scores, weights);
    __syncwarp();
    add_rows<DP, TILE>(weights, values, out);
  }
  float factor[r];
#pragma unroll
  for (int i = 0; i < r; ++i) {
    const float total = row_reduce(sum[i], Sum{});
    const int row = first + thread_row() * r + i;
    factor[i] = args.dropout.scale / total;
    if (thread_column() == 0 && row < args.sequence) args.lse_out[head.stat + row] = highest[i] + logf(total);
  }
  write_rows(out, factor, args.y + head.output + static_cast<std::int64_t>(first) * args.y_elems, args.y_elems,
             args.sequence - first, args.head_dim, args.is_vector);
}

// p and ds of one pair; `gradient`: dy·v.
template <typename T>
__device__ __forceinline__ void softmax_backward_pair(const AttentionArgs<T>& args, const HeadMask& mask, int query,
                                                      int key, float lse, float row_sum, float& score,
                                                      float& gradient) {
  const bool is_seen = key < args.sequence && (!args.causal || key <= query);
  const float p = is_seen ? expf(fmaf(score, args.scale, -lse)) : 0.0F;
  const bool is_kept = !args.dropout.is_on || mask.keeps(query, key);
  score = is_kept ? p * args.dropout.scale : 0.0F;
  gradient = p * ((is_kept ? gradient * args.dropout.scale : 0.0F) - row_sum);
}

// dk and dv of TILE keys of one key/value head, over the query heads of the group in order.
template <typename T, int DP, int TILE>
__global__ void __launch_bounds__(ffma_threads) ffma_key_gradient_kernel(const AttentionArgs<T> args) {
  using Tile = FfmaTile<DP, TILE>;
  constexpr int r = Tile::rows;
  extern __shared__ __align__(16) float shared_floats[];
  float* keys = shared_floats;
  float* values = keys + Tile::elems;
  float* queries = values + Tile::elems;
  float* grads = queries + Tile::elems;  // rows of dy
  float* probabilities = grads + Tile::elems;
  float* score_grads = probabilities + Tile::weight_elems;
  const TilePlace place(args, args.num_kv_heads);
  const int first = place.tile * TILE;
  const int first_head = place.head * args.group();
  const HeadRows<T> shared_head(args, place.sample, first_head);
  const std::int64_t offset = static_cast<std::int64_t>(first) * args.qkv_elems;
  load_floats<T, DP, TILE>(args.qkv + shared_head.key + offset, args.qkv_elems, args.sequence - first, args.head_dim,
                           args.is_vector, keys);
  load_floats<T, DP, TILE>(args.qkv + shared_head.value + offset, args.qkv_elems, args.sequence - first, args.head_dim,
                           args.is_vector, values);
  float dkeys[r][Tile::columns] = {};
  float dvalues[r][Tile::columns] = {};
  for (int head_index = first_head; head_index < first_head + args.group(); ++head_index) {
    const HeadRows<T> head(args, place.sample, head_index);
    const HeadMask mask(args, place.sample, head_index);
    for (int query = args.causal ? first : 0; query < args.sequence; query += TILE) {
      __syncthreads();
      load_floats<T, DP, TILE>(args.qkv + head.query + static_cast<std::int64_t>(query) * args.qkv_elems,
                               args.qkv_elems, args.sequence - query, args.head_dim, args.is_vector, queries);
      load_floats<T, DP, TILE>(args.dy + head.output + static_cast<std::int64_t>(query) * args.y_elems, args.y_elems,
                               args.sequence - query, args.head_dim, args.is_vector, grads);
      __syncthreads();
      float scores[r][r];
      float gradients[r][r];
      dot_rows<DP, TILE>(keys, queries, scores);
      dot_rows<DP, TILE>(values, grads, gradients);
#pragma unroll
      for (int j = 0; j < r; ++j) {
        const int column = query + thread_column() + 16 * j;
        const bool valid = column < args.sequence;  // beyond, q and dy are zero, and so is what p = 1 adds
        const float lse = valid ? args.lse[head.stat + column] : 0.0F;
        const float row_sum = valid ? args.row_sums[head.stat + column] : 0.0F;
#pragma unroll
        for (int i = 0; i < r; ++i) {
          softmax_backward_pair(args, mask, column, first + thread_row() * r + i, lse, row_sum, scores[i][j],
                                gradients[i][j]);
        }
      }
      put_weights<TILE>(scores, probabilities);
      put_weights<TILE>(gradients, score_grads);
      __syncwarp();
      add_rows<DP, TILE>(probabilities, grads, dvalues);
      add_rows<DP, TILE>(score_grads, queries, dkeys);
    }
  }
  float key_factor[r];
  float value_factor[r];
#pragma unroll
  for (int i = 0; i < r; ++i) {
    key_factor[i] = args.scale;
    value_factor[i] = 1;
  }
  write_rows(dkeys, key_factor, args.dqkv + shared_head.key + offset, args.qkv_elems, args.sequence - first,
             args.head_dim, args.is_vector);
  write_rows(dvalues, value_factor, args.dqkv + shared_head.value + offset, args.qkv_elems, args.sequence - first,
             args.head_dim, args.is_vector);
}

// dq of TILE queries of one head.
template <typename T, int DP, int TILE>
__global__ void __launch_bounds__(ffma_threads) ffma_query_gradient_kernel(const AttentionArgs<T> args) {
  using Tile = FfmaTile<DP, TILE>;
  constexpr int r = Tile::rows;
  extern __shared__ __align__(16) float shared_floats[];
  float* queries = shared_floats;
  float* grads = queries + Tile::elems;  // rows of dy
  float* keys = grads + Tile::elems;
  float* values = keys + Tile::elems;
  float* score_grads = values + Tile::elems;
  const TilePlace place(args, args.num_heads);
  const HeadRows<T> head(args, place.sample, place.head);
  const HeadMask mask(args, place.sample, place.head);
  const int first = (args.causal ? args.num_tiles - 1 - place.tile : place.tile) * TILE;
  const int end = args.causal ? min(first + TILE, args.sequence) : args.sequence;
  load_floats<T, DP, TILE>(args.qkv + head.query + static_cast<std::int64_t>(first) * args.qkv_elems, args.qkv_elems,
                           args.sequence - first, args.head_dim, args.is_vector, queries);
  load_floats<T, DP, TILE>(args.dy + head.output + static_cast<std::int64_t>(first) * args.y_elems, args.y_elems,
                           args.sequence - first, args.head_dim, args.is_vector, grads);
  float lse[r];
  float row_sum[r];
  float factor[r];
#pragma unroll
  for (int i = 0; i < r; ++i) {
    const int row = first + thread_row() * r + i;
    lse[i] = row < args.sequence ? args.lse[head.stat + row] : 0.0F;
    row_sum[i] = row < args.sequence ? args.row_sums[head.stat + row] : 0.0F;
    factor[i] = args.scale;
  }
  float dqueries[r][Tile::columns] = {};
  for (int key = 0; key < end; key += TILE) {
    const std::int64_t offset = static_cast<std::int64_t>(key) * args.qkv_elems;
    __syncthreads();
    load_floats<T, DP, TILE>(args.qkv + head.key + offset, args.qkv_elems, args.sequence - key, args.head_dim,
                             args.is_vector, keys);
    load_floats<T, DP, TILE>(args.qkv + head.value + offset, args.qkv_elems, args.sequence - key, args.head_dim,
                             args.is_vector, values);
    __syncthreads();
    float scores[r][r];
    float gradients[r][r];
    dot_rows<DP, TILE>(queries, keys, scores);
    dot_rows<DP, TILE>(grads, values, gradients);
#pragma unroll
    for (int i = 0; i < r; ++i) {
#pragma unroll
      for (int j = 0; j < r; ++j) {
        softmax_backward_pair(args, mask, first + thread_row() * r + i, key + thread_column() + 16 * j, lse[i],
                              row_sum[i], scores[i][j], gradients[i][j]);
      }
    }
    put_weights<TILE>(gradients, score_grads);
    __syncwarp();
    add_rows<DP, TILE>(score_grads, keys, dqueries);
  }
  write_rows(dqueries, factor, args.dqkv + head.query + static_cast<std::int64_t>(first) * args.qkv_elems,
             args.qkv_elems, args.sequence - first, args.head_dim, args.is_vector);
}

}  // namespace potato::cuda
