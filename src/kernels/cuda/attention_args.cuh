// What all attention kernels share: their argument, how thread blocks map to heads, and the dropout mask of a head.
//
// Letters: B batch, T sequence, H query heads, K key/value heads, D width of a head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common.cuh"
#include "potato/kernels/attention.hpp"

namespace potato::cuda {

template <typename T>
struct AttentionArgs {
  const T* qkv;           // [B·T, (H + 2K)·D]
  T* y;                   // [B·T, H·D]; forward writes it
  float* lse_out;         // [B, H, T]; forward writes it
  const T* dy;            // [B·T, H·D]
  T* dqkv;                // [B·T, (H + 2K)·D]
  const float* lse;       // [B, H, T]
  const float* row_sums;  // [B, H, T], of dy · y
  int qkv_elems;          // (H + 2K)·D, from a row to the next
  int y_elems;            // H·D
  int sequence;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  bool causal;
  bool is_vector;  // rows of heads may be moved by whole vectors
  float scale;
  float scale_log2;  // scale · log2(e)
  // Thread blocks run through `heads_at_once` heads (whose keys and values stay in the L2 cache), then the next ones.
  int num_tiles;  // of a head, one a thread block
  std::int64_t heads_at_once;
  std::int64_t heads_total;  // B·H or B·K
  DeviceDropout dropout;
  std::uint64_t first_sample;
  std::uint64_t first_head;

  __host__ __device__ int group() const { return num_heads / num_kv_heads; }
};

template <typename T>
AttentionArgs<T> attention_args(ConstTensorView qkv, const AttentionShape& s, const Dropout& dropout,
                                const TokenRows& rows) {
  AttentionArgs<T> args{};
  const std::int64_t qkv_elems = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
  PC_CHECK(qkv_elems < (1 << 24) && s.sequence < (1 << 30), "attention over ", s.sequence, " rows of ", qkv_elems);
  PC_CHECK(s.scale > 0, "attention with scale ", s.scale);
  args.qkv = data_of<T>(qkv);
  args.qkv_elems = static_cast<int>(qkv_elems);
  args.y_elems = static_cast<int>(s.num_heads * s.head_dim);
  args.sequence = static_cast<int>(s.sequence);
  args.num_heads = static_cast<int>(s.num_heads);
  args.num_kv_heads = static_cast<int>(s.num_kv_heads);
  args.head_dim = static_cast<int>(s.head_dim);
  args.causal = s.causal;
  args.scale = static_cast<float>(s.scale);
  args.scale_log2 = static_cast<float>(s.scale * 1.4426950408889634);
  args.dropout = device_dropout(dropout);
  args.first_sample = rows.first_sample;
  args.first_head = static_cast<std::uint64_t>(s.first_head);
  return args;
}

// Sets how `num_heads` heads a sample are cut into tiles of `tile_rows`, and returns the grid.
template <typename T>
dim3 set_tiles(AttentionArgs<T>& args, std::int64_t num_heads, const AttentionShape& s, int tile_rows) {
  constexpr std::int64_t cached_bytes = std::int64_t{16} << 20;
  const std::int64_t head_bytes = 4 * s.sequence * s.head_dim * static_cast<std::int64_t>(sizeof(T));
  args.num_tiles = static_cast<int>((s.sequence + tile_rows - 1) / tile_rows);
  args.heads_total = s.batch * num_heads;
  args.heads_at_once = std::clamp<std::int64_t>(cached_bytes / head_bytes, 1, args.heads_total);
  const std::int64_t num_thread_blocks = args.heads_total * args.num_tiles;
  PC_CHECK(num_thread_blocks < (std::int64_t{1} << 31), "attention over too many heads: ", args.heads_total);
  return dim3(static_cast<unsigned>(num_thread_blocks));
}

// Allows a kernel its shared memory, then launches it.
template <typename T>
void launch_attention(Stream& stream, dim3 grid, int threads, std::size_t shared_bytes,
                      void (*kernel)(AttentionArgs<T>), const AttentionArgs<T>& args) {
  PC_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  launch(stream, grid, dim3(static_cast<unsigned>(threads)), shared_bytes, kernel, args);
}

// The tile of the head that this thread block works on. Within the heads that run at once, tile 0 of all comes first.
struct TilePlace {
  int tile;
  int head;  // within the sample
  std::int64_t sample;

  template <typename T>
  __device__ TilePlace(const AttentionArgs<T>& args, int num_heads) {
    const std::int64_t index = blockIdx.x;
    const std::int64_t first_head = index / (args.heads_at_once * args.num_tiles) * args.heads_at_once;
    const std::int64_t rest = args.heads_total - first_head;
    const std::int64_t heads = rest < args.heads_at_once ? rest : args.heads_at_once;
    const std::int64_t local = index - first_head * args.num_tiles;
    tile = static_cast<int>(local / heads);
    const std::int64_t place = first_head + local % heads;
    sample = place / num_heads;
    head = static_cast<int>(place % num_heads);
  }
};

// The first rows of one head in qkv (or dqkv), in y (or dy), and in [B, H, T].
template <typename T>
struct HeadRows {
  std::int64_t query;
  std::int64_t key;
  std::int64_t value;
  std::int64_t output;
  std::int64_t stat;

  __device__ HeadRows(const AttentionArgs<T>& args, std::int64_t sample, int head) {
    const std::int64_t first = sample * args.sequence * args.qkv_elems;
    const int kv_head = head / args.group();
    query = first + static_cast<std::int64_t>(head) * args.head_dim;
    key = first + static_cast<std::int64_t>(args.num_heads + kv_head) * args.head_dim;
    value = first + static_cast<std::int64_t>(args.num_heads + args.num_kv_heads + kv_head) * args.head_dim;
    output = sample * args.sequence * args.y_elems + static_cast<std::int64_t>(head) * args.head_dim;
    stat = (sample * args.num_heads + head) * args.sequence;
  }
};

// The dropout mask of one head of one sample: channel = global head · T + key.
struct HeadMask {
  PhiloxKey key;
  unsigned threshold;
  unsigned first_block;  // of four channels
  unsigned skip;         // channels of that block before key 0
  std::uint64_t sample;

  template <typename T>
  __device__ HeadMask(const AttentionArgs<T>& args, std::int64_t local_sample, int head) {
    const std::uint64_t first_channel =
        (args.first_head + static_cast<std::uint64_t>(head)) * static_cast<std::uint64_t>(args.sequence);
    key = args.dropout.key;
    threshold = args.dropout.threshold;
    first_block = static_cast<unsigned>(first_channel >> 2);
    skip = static_cast<unsigned>(first_channel & 3);
    sample = args.first_sample + static_cast<std::uint64_t>(local_sample);
  }

  // Bit i: channel 4 · block + i is kept.
  __device__ __forceinline__ unsigned keep_block(unsigned query, unsigned block) const {
    const uint4 bits = dropout_bits(key, sample, query, static_cast<std::uint64_t>(block) << 2);
    return (bits.x >= threshold ? 1U : 0U) | (bits.y >= threshold ? 2U : 0U) | (bits.z >= threshold ? 4U : 0U) |
           (bits.w >= threshold ? 8U : 0U);
  }

  // Bit i: (query, first_key + i) is kept, for four keys; first_key % 4 == 0.
  __device__ __forceinline__ unsigned keep_four(int query, int first_key) const {
    const unsigned block = first_block + static_cast<unsigned>(first_key) / 4;
    unsigned bits = keep_block(static_cast<unsigned>(query), block);
    if (skip != 0) bits = (bits | keep_block(static_cast<unsigned>(query), block + 1) << 4) >> skip;
    return bits & 15U;
  }

  __device__ __forceinline__ bool keeps(int query, int at_key) const {
    const unsigned channel = skip + static_cast<unsigned>(at_key);
    return (keep_block(static_cast<unsigned>(query), first_block + channel / 4) >> (channel & 3) & 1U) != 0;
  }
};

// The kernels of each kind; attention.cu chooses. The views are checked.
template <typename T>
void mma_attention_forward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream);
template <typename T>
void mma_attention_backward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream);
template <typename T>
void ffma_attention_forward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream);
template <typename T>
void ffma_attention_backward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream);

}  // namespace potato::cuda
