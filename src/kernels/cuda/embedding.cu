// Embeddings. Every sum has a fixed order, so all results are bitwise repeatable.
//
//   M rows, C channels; S is the stored type (fp32, bf16, fp16), gradients of parameters are fp32.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "common.cuh"
#include "embedding.hpp"

namespace potato::cuda {

namespace {

constexpr int block_threads = 256;
constexpr int block_warps = block_threads / warp_lanes;
// Rows that one block of an elementwise kernel handles: enough for each thread to have several accesses in flight.
constexpr int rows_per_block = 8;
// Positions of the sorted rows that one warp of the backward sums; longer segments are summed in two stages.
constexpr int chunk_rows = 64;
// Workspace of the backward beside CUB's own (which is far below the 16 MiB that this leaves).
constexpr std::int64_t batch_bytes = std::int64_t{48} << 20;

// N values as floats; with `vector` by 16-byte accesses, else the first `valid` ones singly.
template <int N, bool vector, typename T>
__device__ __forceinline__ void load_floats(const T* from, int valid, float (&out)[N]) {
  if constexpr (vector) {
    constexpr int width = N < vector_elems<T> ? N : vector_elems<T>;
#pragma unroll
    for (int part = 0; part < N; part += width) {
      const auto pack = load_pack<width>(from + part);
#pragma unroll
      for (int i = 0; i < width; ++i) out[part + i] = pack[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = i < valid ? to_float(from[i]) : 0.0F;
  }
}

// Pairs of 16-bit values are put together here: the compiler stores a struct of them in parts.
template <int N, bool vector, typename T>
__device__ __forceinline__ void store_floats(T* to, int valid, const float (&values)[N]) {
  if constexpr (vector) {
    if constexpr (sizeof(T) == 2) {
      static_assert(N == 8);
      *reinterpret_cast<uint4*>(to) =
          make_uint4(pair_bits<T>(values[0], values[1]), pair_bits<T>(values[2], values[3]),
                     pair_bits<T>(values[4], values[5]), pair_bits<T>(values[6], values[7]));
    } else if constexpr (N == 1) {
      *to = values[0];
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<float4*>(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < valid) to[i] = from_float<T>(values[i]);
    }
  }
}

// mask[i] of channel `channel` + i; channel and N are multiples of 4.
template <int N>
__device__ __forceinline__ void dropout_mask(const DeviceDropout& dropout, std::uint64_t sample, unsigned position,
                                             int channel, float (&mask)[N]) {
#pragma unroll
  for (int part = 0; part < N; part += 4) {
    const uint4 bits = dropout_bits(dropout.key, sample, position, static_cast<std::uint64_t>(channel + part));
    mask[part] = bits.x >= dropout.threshold ? dropout.scale : 0.0F;
    mask[part + 1] = bits.y >= dropout.threshold ? dropout.scale : 0.0F;
    mask[part + 2] = bits.z >= dropout.threshold ? dropout.scale : 0.0F;
    mask[part + 3] = bits.w >= dropout.threshold ? dropout.scale : 0.0F;
  }
}

// Blocks take 8 rows each, threads stride over their units (16 bytes, or one element). Moves each row once in and once
// out; deterministic.
template <typename Unit>
__global__ void __launch_bounds__(block_threads)
    gather_kernel(const std::int32_t* __restrict__ tokens, const Unit* __restrict__ weight, std::int64_t first_token,
                  std::int64_t num_tokens, Unit* __restrict__ y, std::int64_t num_rows, unsigned row_units) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * rows_per_block;
  const unsigned num_units = static_cast<unsigned>(min(std::int64_t{rows_per_block}, num_rows - begin)) * row_units;
  y += begin * row_units;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < num_units; i += block_threads) {
    const unsigned r = i / row_units;
    const std::int64_t token = tokens[begin + r] - first_token;
    Unit value{};
    if (token >= 0 && token < num_tokens) value = weight[token * row_units + (i - r * row_units)];
    y[i] = value;
  }
}

// Blocks take 8 rows each, threads stride over groups of N channels. 2 elements from and to memory (the positions stay
// in the L2 cache); deterministic. x may be y, so that a thread reads a group before it writes the same one.
template <typename S, int N, bool vector>
__global__ void __launch_bounds__(block_threads)
    position_forward_kernel(const S* x, const S* __restrict__ positions, S* y, DeviceDropout dropout, TokenRows rows,
                            std::int64_t num_rows, unsigned channels) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * rows_per_block;
  const unsigned row_groups = (channels + N - 1) / N;
  const unsigned num_groups = static_cast<unsigned>(min(std::int64_t{rows_per_block}, num_rows - begin)) * row_groups;
  const std::int64_t token = rows.first_row + begin;
  const auto length = static_cast<unsigned>(rows.sequence_length);
  const auto first_position = static_cast<unsigned>(token % rows.sequence_length);
  const std::uint64_t first_sample = rows.first_sample + static_cast<std::uint64_t>(token / rows.sequence_length);
  for (unsigned i = threadIdx.x; i < num_groups; i += block_threads) {
    const unsigned r = i / row_groups;
    const unsigned c = (i - r * row_groups) * N;
    const int valid = static_cast<int>(channels - c);
    const unsigned samples = (first_position + r) / length;
    const unsigned position = first_position + r - samples * length;
    const std::int64_t at = (begin + r) * channels + c;
    float value[N], added[N];
    load_floats<N, vector>(x + at, valid, value);
    load_floats<N, vector>(positions + static_cast<std::int64_t>(position) * channels + c, valid, added);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] += added[j];
    if (dropout.is_on) {
      float mask[N];
      dropout_mask(dropout, first_sample + samples, position, static_cast<int>(c), mask);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] *= mask[j];
    }
    store_floats<N, vector>(y + at, valid, value);
  }
}

// Block (k, j): the position of row k, and tile j of the columns; a thread owns N columns and walks rows k, k + T, …,
// which makes the order of the sum that of the CPU twin. 2 elements moved; deterministic. dx may be dy: a thread reads
// a group before it writes the same one.
template <typename S, int N, bool vector>
__global__ void __launch_bounds__(block_threads)
    position_backward_kernel(const S* dy, S* dx, float* __restrict__ position_gradient, DeviceDropout dropout,
                             TokenRows rows, std::int64_t num_rows, unsigned channels) {
  constexpr int in_flight = 4;
  const unsigned c = (blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (c >= channels) return;
  const int valid = static_cast<int>(channels - c);
  const std::int64_t token = rows.first_row + blockIdx.x;
  const std::int64_t length = rows.sequence_length;
  const auto position = static_cast<unsigned>(token % length);
  std::uint64_t sample = rows.first_sample + static_cast<std::uint64_t>(token / length);
  float* gradient = position_gradient + static_cast<std::int64_t>(position) * channels + c;
  float sum[N];
  load_floats<N, vector>(gradient, valid, sum);
  for (std::int64_t first = blockIdx.x; first < num_rows; first += in_flight * length) {
    float value[in_flight][N];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const std::int64_t r = first + k * length;
      if (r < num_rows) load_floats<N, vector>(dy + r * channels + c, valid, value[k]);
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k, ++sample) {
      const std::int64_t r = first + k * length;
      if (r >= num_rows) break;
      if (dropout.is_on) {
        float mask[N];
        dropout_mask(dropout, sample, position, static_cast<int>(c), mask);
#pragma unroll
        for (int j = 0; j < N; ++j) value[k][j] *= mask[j];
      }
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += value[k][j];
      store_floats<N, vector>(dx + r * channels + c, valid, value[k]);
    }
  }
  store_floats<N, vector>(gradient, valid, sum);
}

// --- embedding_backward ---
//
// The rows of a batch are sorted by token (a stable sort: rows of one token stay ascending). A token's rows are a
// segment of the sorted positions, and a segment falls into chunks of chunk_rows. A warp adds up one chunk; it adds to
// the gradient itself where the chunk is the whole segment, else it leaves a partial sum, which a second kernel adds
// in order. How a token's sum is split thus depends on its own rows only.

struct Segments {
  const unsigned* keys;         // [num_rows] tokens of the shard, ascending; rows outside have key `num_tokens`
  const std::int32_t* rows;     // [num_rows] rows of the batch
  std::int32_t* chunks;         // first positions of chunks, in any order
  std::int32_t* long_segments;  // first positions of segments of more than one chunk, in any order
  std::int32_t* counts;         // of chunks and long_segments
  float* partials;              // [2 · ⌈num_rows / chunk_rows⌉, C]
  std::int32_t num_rows;
  unsigned num_tokens;
};

__global__ void __launch_bounds__(block_threads)
    keys_kernel(const std::int32_t* __restrict__ tokens, std::int64_t first_token, std::int64_t num_tokens,
                unsigned* __restrict__ keys, std::int32_t* __restrict__ rows, std::int32_t num_rows,
                std::int32_t* __restrict__ counts) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (i < 2) counts[i] = 0;
  if (i >= num_rows) return;
  const std::int64_t token = tokens[i] - first_token;
  keys[i] = static_cast<unsigned>(token >= 0 && token < num_tokens ? token : num_tokens);
  rows[i] = i;
}

// First position of [first, last) whose key is not below (after = false) or is above (after = true) `key`.
__device__ std::int32_t bound_of(const unsigned* keys, std::int32_t first, std::int32_t last, unsigned key,
                                 bool after) {
  while (first < last) {
    const std::int32_t middle = first + (last - first) / 2;
    if (keys[middle] < key || (after && keys[middle] == key)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// Appends `value` of the lanes that have one; the order does not matter to those who read the list.
__device__ __forceinline__ void append(bool has_value, std::int32_t value, std::int32_t* list, std::int32_t* count) {
  const unsigned lanes = __ballot_sync(0xFFFFFFFFU, has_value);
  if (lanes == 0) return;
  const unsigned lane = threadIdx.x % warp_lanes;
  std::int32_t base = 0;
  if (lane == 0) base = atomicAdd(count, __popc(lanes));
  base = __shfl_sync(0xFFFFFFFFU, base, 0);
  if (has_value) list[base + __popc(lanes & ((1U << lane) - 1))] = value;
}

__global__ void __launch_bounds__(block_threads) chunks_kernel(Segments segments) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * block_threads + threadIdx.x);
  const unsigned* keys = segments.keys;
  const unsigned key = i < segments.num_rows ? keys[i] : segments.num_tokens;
  bool is_chunk = false, is_long = false;
  if (key != segments.num_tokens) {
    if (i == 0 || keys[i - 1] != key) {
      is_chunk = true;
      is_long = i + chunk_rows < segments.num_rows && keys[i + chunk_rows] == key;
    } else if (i >= chunk_rows && keys[i - chunk_rows] == key) {
      is_chunk = (i - bound_of(keys, 0, i, key, false)) % chunk_rows == 0;
    }
  }
  append(is_chunk, i, segments.chunks, segments.counts);
  append(is_long, i, segments.long_segments, segments.counts + 1);
}

// Slot of the partial sum of the chunk at `first`. Chunks of chunk_rows rows begin at least that far apart, and so do
// shorter ones of long segments (each follows a full one), so that no two share a slot.
__device__ __forceinline__ std::int64_t slot_of(std::int32_t first, bool is_full) {
  return 2 * static_cast<std::int64_t>(first / chunk_rows) + (is_full ? 1 : 0);
}

// A warp takes a chunk and a tile of 32 · N columns, 8 rows in flight. Reads dy once, reads and writes each row of the
// gradient that has tokens once.
template <typename S, int N>
__global__ void __launch_bounds__(block_threads, 2)
    chunk_sums_kernel(Segments segments, const S* __restrict__ dy, float* __restrict__ weight_gradient,
                      std::int64_t channels) {
  constexpr int in_flight = 8;
  constexpr unsigned all_lanes = 0xFFFFFFFFU;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t num_tiles = (channels + warp_lanes * N - 1) / (warp_lanes * N);
  const std::int64_t num_items = segments.counts[0] * num_tiles;
  const std::int64_t num_warps = static_cast<std::int64_t>(gridDim.x) * block_warps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * block_warps + threadIdx.x / warp_lanes;
       item < num_items; item += num_warps) {
    const std::int32_t first = segments.chunks[item / num_tiles];
    const std::int64_t c = (item % num_tiles * warp_lanes + lane) * N;
    const bool has_columns = c < channels;
    const unsigned key = segments.keys[first];
    const std::int32_t low = first + lane, high = low + warp_lanes;
    const bool has_low = low < segments.num_rows && segments.keys[low] == key;
    const bool has_high = high < segments.num_rows && segments.keys[high] == key;
    const std::int32_t low_row = has_low ? segments.rows[low] : 0;
    const std::int32_t high_row = has_high ? segments.rows[high] : 0;
    const int count = __popc(__ballot_sync(all_lanes, has_low)) + __popc(__ballot_sync(all_lanes, has_high));
    const std::int32_t end = first + chunk_rows;
    const bool is_whole =
        (first == 0 || segments.keys[first - 1] != key) && (end >= segments.num_rows || segments.keys[end] != key);
    float* to = is_whole ? weight_gradient + key * channels + c
                         : segments.partials + slot_of(first, count == chunk_rows) * channels + c;
    float sum[N] = {};
    if (is_whole && has_columns) load_floats<N, true>(to, N, sum);
    for (int j = 0; j < count; j += in_flight) {
      Pack<S, N> packs[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        const std::int32_t row = __shfl_sync(all_lanes, j < warp_lanes ? low_row : high_row, (j + k) % warp_lanes);
        if (j + k < count && has_columns) packs[k] = load_pack<N>(dy + row * channels + c);
      }
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        if (j + k < count && has_columns) {
#pragma unroll
          for (int i = 0; i < N; ++i) sum[i] += packs[k][i];
        }
      }
    }
    if (has_columns) store_floats<N, true>(to, N, sum);
  }
}

// A warp takes a long segment and a tile of 32 · N columns, and adds the partial sums of its chunks in order.
template <int N>
__global__ void __launch_bounds__(block_threads)
    add_partials_kernel(Segments segments, float* __restrict__ weight_gradient, std::int64_t channels) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t num_tiles = (channels + warp_lanes * N - 1) / (warp_lanes * N);
  const std::int64_t num_items = segments.counts[1] * num_tiles;
  const std::int64_t num_warps = static_cast<std::int64_t>(gridDim.x) * block_warps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * block_warps + threadIdx.x / warp_lanes;
       item < num_items; item += num_warps) {
    const std::int64_t c = (item % num_tiles * warp_lanes + lane) * N;
    if (c >= channels) continue;
    const std::int32_t first = segments.long_segments[item / num_tiles];
    const unsigned key = segments.keys[first];
    const std::int32_t end = bound_of(segments.keys, first, segments.num_rows, key, true);
    float* to = weight_gradient + key * channels + c;
    float sum[N];
    load_floats<N, true>(to, N, sum);
#pragma unroll 8
    for (std::int32_t chunk = first; chunk < end; chunk += chunk_rows) {
      float part[N];
      const std::int64_t slot = slot_of(chunk, end - chunk >= chunk_rows);
      load_floats<N, true>(static_cast<const float*>(segments.partials) + slot * channels + c, N, part);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += part[i];
    }
    store_floats<N, true>(to, N, sum);
  }
}

// The parts of one piece of workspace, each at a multiple of 256 bytes; with a null base it only counts.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T>
  T* take(std::int64_t num_elems) {
    const std::int64_t offset_bytes = used_bytes_;
    used_bytes_ += (num_elems * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_bytes);
  }
  std::int64_t used_bytes() const { return used_bytes_; }

 private:
  char* base_;
  std::int64_t used_bytes_ = 0;
};

struct BatchMemory {
  unsigned* keys[2];
  std::int32_t* rows[2];
  std::int32_t* chunks;
  std::int32_t* long_segments;
  std::int32_t* counts;
  float* partials;
  char* sort;

  BatchMemory(Parts& parts, std::int64_t num_rows, std::int64_t channels, std::int64_t sort_bytes)
      : keys{parts.take<unsigned>(num_rows), parts.take<unsigned>(num_rows)},
        rows{parts.take<std::int32_t>(num_rows), parts.take<std::int32_t>(num_rows)},
        chunks(parts.take<std::int32_t>(num_rows)),
        long_segments(parts.take<std::int32_t>(num_rows / chunk_rows + 1)),
        counts(parts.take<std::int32_t>(2)),
        partials(
            parts.take<float>(num_rows <= chunk_rows ? 0 : 2 * ((num_rows + chunk_rows - 1) / chunk_rows) * channels)),
        sort(parts.take<char>(sort_bytes)) {}
};

// Sorted keys and rows of one batch, and the lists of chunks and long segments.
Segments sorted_segments(const std::int32_t* tokens, std::int32_t num_rows, std::int64_t first_token,
                         std::int64_t num_tokens, std::int64_t channels, Stream& stream) {
  const int key_bits = std::bit_width(static_cast<std::uint64_t>(num_tokens));
  std::size_t sort_bytes = 0;
  cub::DoubleBuffer<unsigned> keys;
  cub::DoubleBuffer<std::int32_t> rows;
  PC_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, rows, num_rows, 0, key_bits, cuda_stream(stream)));
  Parts counted(nullptr);
  (void)BatchMemory(counted, num_rows, channels, static_cast<std::int64_t>(sort_bytes));
  Parts parts(stream.workspace(counted.used_bytes()));
  const BatchMemory memory(parts, num_rows, channels, static_cast<std::int64_t>(sort_bytes));

  const unsigned blocks = num_blocks(num_rows, block_threads, num_rows);
  launch(stream, blocks, block_threads, 0, keys_kernel, tokens, first_token, num_tokens, memory.keys[0], memory.rows[0],
         num_rows, memory.counts);
  keys = cub::DoubleBuffer<unsigned>(memory.keys[0], memory.keys[1]);
  rows = cub::DoubleBuffer<std::int32_t>(memory.rows[0], memory.rows[1]);
  PC_CUDA(
      cub::DeviceRadixSort::SortPairs(memory.sort, sort_bytes, keys, rows, num_rows, 0, key_bits, cuda_stream(stream)));
  const Segments segments{keys.Current(), rows.Current(),  memory.chunks, memory.long_segments,
                          memory.counts,  memory.partials, num_rows,      static_cast<unsigned>(num_tokens)};
  launch(stream, blocks, block_threads, 0, chunks_kernel, segments);
  return segments;
}

template <typename S, int N>
void add_segments(const Segments& segments, const S* dy, float* weight_gradient, std::int64_t channels,
                  Stream& stream) {
  const auto tiles = [&](int n) { return (channels + warp_lanes * n - 1) / (warp_lanes * n); };
  launch(stream, num_blocks(segments.num_rows * tiles(N), block_warps), block_threads, 0, chunk_sums_kernel<S, N>,
         segments, dy, weight_gradient, channels);
  if (segments.num_rows <= chunk_rows) return;
  constexpr int n = N == 1 ? 1 : 4;
  launch(stream, num_blocks(segments.num_rows / chunk_rows * tiles(n), block_warps), block_threads, 0,
         add_partials_kernel<n>, segments, weight_gradient, channels);
}

// Kernels count the units of a few rows in 32 bits, and blocks in 31.
void check_sizes(std::int64_t num_rows, std::int64_t channels) {
  PC_CHECK(channels < (std::int64_t{1} << 27) && num_rows < (std::int64_t{1} << 33), num_rows, " rows of ", channels,
           " channels");
}

template <typename Unit>
void gather(const ConstTensorView& tokens, const ConstTensorView& weight, std::int64_t first_token, const TensorView& y,
            Stream& stream) {
  const std::int64_t num_rows = y.dim(0);
  const auto row_units =
      static_cast<unsigned>(y.dim(1) * dtype_bytes(y.dtype) / static_cast<std::int64_t>(sizeof(Unit)));
  launch(stream, num_blocks(num_rows, rows_per_block, num_rows), block_threads, 0, gather_kernel<Unit>,
         tokens.as<std::int32_t>(), static_cast<const Unit*>(weight.data), first_token, weight.dim(0),
         static_cast<Unit*>(y.data), num_rows, row_units);
}

template <typename S, int N, bool vector>
void position_backward(const ConstTensorView& dy, const TensorView& dx, const TensorView& position_gradient,
                       const DeviceDropout& dropout, const TokenRows& rows, Stream& stream) {
  const std::int64_t num_rows = dy.dim(0), channels = dy.dim(1);
  const std::int64_t groups = (channels + N - 1) / N;
  const std::int64_t lanes = (groups + warp_lanes - 1) / warp_lanes * warp_lanes;
  const auto threads = static_cast<unsigned>(std::min<std::int64_t>(lanes, block_threads));
  const dim3 grid(static_cast<unsigned>(std::min(num_rows, rows.sequence_length)),
                  static_cast<unsigned>((groups + threads - 1) / threads));
  PC_CHECK(grid.y < 65536, channels, " channels");
  launch(stream, grid, threads, 0, position_backward_kernel<S, N, vector>, data_of<S>(dy), data_of<S>(dx),
         data_of<float>(position_gradient), dropout, rows, num_rows, static_cast<unsigned>(channels));
}

}  // namespace

void embedding_forward(ConstTensorView tokens, ConstTensorView weight, std::int64_t first_token, TensorView y,
                       Stream& stream) {
  check_sizes(y.dim(0), y.dim(1));
  const std::int64_t elem_bytes = dtype_bytes(y.dtype);
  if (y.dim(1) * elem_bytes % 16 == 0 && is_aligned(weight.data, 16) && is_aligned(y.data, 16)) {
    gather<uint4>(tokens, weight, first_token, y, stream);
  } else if (elem_bytes == 4) {
    gather<std::uint32_t>(tokens, weight, first_token, y, stream);
  } else {
    PC_CHECK(elem_bytes == 2, "the CUDA back end has no kernels for ", dtype_name(y.dtype));
    gather<std::uint16_t>(tokens, weight, first_token, y, stream);
  }
}

void embedding_backward(ConstTensorView tokens, ConstTensorView dy, std::int64_t first_token,
                        TensorView weight_gradient, Stream& stream) {
  const std::int64_t num_rows = dy.dim(0), channels = dy.dim(1);
  check_sizes(num_rows, channels);
  // Batches bound the workspace; a token's sum goes on from batch to batch, so that rows stay ascending.
  constexpr std::int64_t bytes_per_row = 5 * 4 + 1;  // keys and rows twice, chunks, a part of long_segments
  const std::int64_t most = batch_bytes / (bytes_per_row + channels * 8 / chunk_rows + 1);
  const std::int64_t batch_rows = std::clamp<std::int64_t>(most / chunk_rows * chunk_rows, chunk_rows, 1 << 20);
  dispatch_device(dy.dtype, [&](auto zero) {
    using S = decltype(zero);
    const S* dy_ = data_of<S>(dy);
    auto* gradient = data_of<float>(weight_gradient);
    constexpr int n = vector_elems<S>;
    const bool vector = channels % n == 0 && is_aligned(dy_, 16) && is_aligned(gradient, 16);
    for (std::int64_t begin = 0; begin < num_rows; begin += batch_rows) {
      const auto count = static_cast<std::int32_t>(std::min(batch_rows, num_rows - begin));
      const Segments segments = sorted_segments(tokens.as<std::int32_t>() + begin, count, first_token,
                                                weight_gradient.dim(0), channels, stream);
      if (vector) {
        add_segments<S, n>(segments, dy_ + begin * channels, gradient, channels, stream);
      } else {
        add_segments<S, 1>(segments, dy_ + begin * channels, gradient, channels, stream);
      }
    }
  });
}

void position_dropout_forward(ConstTensorView x, ConstTensorView positions, TensorView y, Dropout dropout,
                              TokenRows rows, Stream& stream) {
  const std::int64_t num_rows = x.dim(0), channels = x.dim(1);
  check_sizes(num_rows, channels);
  PC_CHECK(rows.sequence_length < (std::int64_t{1} << 31), "sequence length ", rows.sequence_length);
  const unsigned blocks = num_blocks(num_rows, rows_per_block, num_rows);
  dispatch_device(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    constexpr int n = vector_elems<S>;
    const bool vector =
        channels % n == 0 && is_aligned(x.data, 16) && is_aligned(positions.data, 16) && is_aligned(y.data, 16);
    launch(stream, blocks, block_threads, 0,
           vector ? position_forward_kernel<S, n, true> : position_forward_kernel<S, 4, false>, data_of<S>(x),
           data_of<S>(positions), data_of<S>(y), device_dropout(dropout), rows, num_rows,
           static_cast<unsigned>(channels));
  });
}

void position_dropout_backward(ConstTensorView dy, TensorView dx, TensorView position_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream) {
  check_sizes(dy.dim(0), dy.dim(1));
  PC_CHECK(rows.sequence_length < (std::int64_t{1} << 31), "sequence length ", rows.sequence_length);
  dispatch_device(dy.dtype, [&](auto zero) {
    using S = decltype(zero);
    constexpr int n = vector_elems<S>;
    const bool vector = dy.dim(1) % n == 0 && is_aligned(dy.data, 16) && is_aligned(dx.data, 16) &&
                        is_aligned(position_gradient.data, 16);
    if (vector) {
      position_backward<S, n, true>(dy, dx, position_gradient, device_dropout(dropout), rows, stream);
    } else {
      position_backward<S, 4, false>(dy, dx, position_gradient, device_dropout(dropout), rows, stream);
    }
  });
}

}  // namespace potato::cuda
