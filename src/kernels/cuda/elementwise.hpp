// CUDA back end of kernels/elementwise.hpp, and for .cu files how work over the rows of a matrix is split.
#pragma once

#include <cstdint>

#include "potato/kernels/elementwise.hpp"

namespace potato::cuda {

void fill(TensorView x, double value, Stream& stream);
void copy(ConstTensorView source, TensorView destination, Stream& stream);
void convert(ConstTensorView source, TensorView destination, Stream& stream);
void add_to(ConstTensorView x, TensorView y, Stream& stream);
void add_squared_norm(ConstTensorView x, double weight, TensorView result, Stream& stream);

// The second stage of sums over rows: for each column c of partials [num_tiles, columns], the sum over tiles in a fixed
// order is added once, to first[c] where c < first_columns and else to second[c - first_columns] (may be null where
// there are no such columns).
void add_column_sums(const float* partials, std::int64_t num_tiles, std::int64_t columns, float* first,
                     std::int64_t first_columns, float* second, Stream& stream);

}  // namespace potato::cuda

#ifdef __CUDACC__

#include <algorithm>
#include <cstring>

#include "common.cuh"
#include "potato/core/narrow.hpp"

// Work over x [M, C] by tiles. A block of 256 threads covers 8 packs of columns (128 bytes of a row; 32 single columns
// where there are no packs) by 32 (8) rows at a time; a thread keeps its columns and goes down the rows of its tile,
// four rows' loads in flight. What depends on the column alone is read once a tile. An operation Op<T, N> has
//   static constexpr int num_inputs;    tensors [M, C] that are read
//   static constexpr bool has_sums;     whether something is summed over the rows
//   const T* inputs[num_inputs];
//   State begin(column, first_row)      called first; rows then follow in steps of map_slots<N>
//   void apply(State&, row, offset, const Pack<T, N>* in, float* sums)
//                                       offset = row · C + column; writes the outputs and adds to sums[N]
// Outputs may be inputs' memory: an element is read and written by one thread. Sums are taken over a tile's rows in
// registers, over the block in shared memory, and over tiles by add_column_sums: deterministic, no atomics.
namespace potato::cuda {

constexpr int map_threads = 256;
constexpr int map_unroll = 4;
constexpr int map_blocks_per_sm = 3;  // at least; bounds the registers
template <int N>
inline constexpr int map_lanes = N == 1 ? 32 : 8;
template <int N>
inline constexpr int map_slots = map_threads / map_lanes<N>;

// load_pack and store_pack, for single elements too. The store is spelled out, since behind a struct of pointers the
// compiler splits a pack into 4-byte stores.
template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load_elems(const T* address) {
  if constexpr (N == 1) {
    return {{*address}};
  } else {
    return load_pack<N>(address);
  }
}
template <int N, typename T>
__device__ __forceinline__ void store_elems(T* address, const Pack<T, N>& pack) {
  if constexpr (N == 1) {
    *address = pack.elems[0];
  } else if constexpr (sizeof(pack) == 16) {
    uint4 words;
    memcpy(&words, &pack, sizeof(words));
    __stwb(reinterpret_cast<uint4*>(address), words);
  } else {
    store_pack(address, pack);
  }
}

// A pack as it is loaded. Held as words until it is used, 16-bit elements take half the registers.
template <typename T, int N>
using RawPack = std::conditional_t<sizeof(Pack<T, N>) == 16, uint4, Pack<T, N>>;

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> unpacked(const RawPack<T, N>& raw) {
  Pack<T, N> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack;
}

template <typename T, int N, typename Op>
__global__ void __launch_bounds__(map_threads, map_blocks_per_sm)
    map_rows_kernel(const Op op, std::int64_t num_rows, std::int64_t columns, std::int64_t tile_rows,
                    unsigned column_tiles, float* partials) {
  constexpr int lanes = map_lanes<N>, slots = map_slots<N>;
  const int lane = static_cast<int>(threadIdx.x) % lanes, slot = static_cast<int>(threadIdx.x) / lanes;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x % column_tiles) * (lanes * N);
  const std::int64_t column = first_column + lane * N;
  const std::int64_t row_tile = blockIdx.x / column_tiles;
  const std::int64_t begin = row_tile * tile_rows;
  const std::int64_t end = begin + tile_rows < num_rows ? begin + tile_rows : num_rows;
  float sums[N] = {};
  if (column < columns) {
    auto state = op.begin(column, begin + slot);
    for (std::int64_t row = begin + slot; row < end; row += slots * map_unroll) {
      RawPack<T, N> raw[map_unroll][Op::num_inputs];
#pragma unroll
      for (int u = 0; u < map_unroll; ++u) {
        if (row + u * slots >= end) break;
#pragma unroll
        for (int k = 0; k < Op::num_inputs; ++k) {
          const T* address = op.inputs[k] + (row + u * slots) * columns + column;
          raw[u][k] = *reinterpret_cast<const RawPack<T, N>*>(address);
        }
      }
#pragma unroll
      for (int u = 0; u < map_unroll; ++u) {
        if (row + u * slots >= end) break;
        Pack<T, N> in[Op::num_inputs];
#pragma unroll
        for (int k = 0; k < Op::num_inputs; ++k) in[k] = unpacked<T, N>(raw[u][k]);
        op.apply(state, row + u * slots, (row + u * slots) * columns + column, in, sums);
      }
    }
  }
  if constexpr (Op::has_sums) {
    constexpr int width = lanes * N;
    __shared__ float shared[slots][width];
#pragma unroll
    for (int i = 0; i < N; ++i) shared[slot][lane * N + i] = sums[i];
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x);
    if (c < width && first_column + c < columns) {
      float total = 0;
      for (int s = 0; s < slots; ++s) total += shared[s][c];
      partials[row_tile * columns + first_column + c] = total;
    }
  }
}

// Runs `op` over [num_rows, columns], both > 0; its sums over rows are added to sums [columns].
template <typename T, int N, typename Op>
void map_rows(const Op& op, std::int64_t num_rows, std::int64_t columns, float* sums, Stream& stream) {
  constexpr std::int64_t most_summing_blocks = 132 * 16;  // enough to balance, few enough that partial sums are small
  constexpr std::int64_t step_rows = map_slots<N> * map_unroll;
  constexpr std::int64_t tile_columns = map_lanes<N> * N;
  const std::int64_t column_tiles = (columns + tile_columns - 1) / tile_columns;
  std::int64_t tile_rows = step_rows;
  if constexpr (Op::has_sums) {
    const std::int64_t most_tiles = std::max<std::int64_t>(1, most_summing_blocks / column_tiles);
    tile_rows *= (num_rows + most_tiles * step_rows - 1) / (most_tiles * step_rows);
  }
  const std::int64_t row_tiles = (num_rows + tile_rows - 1) / tile_rows;
  float* partials = nullptr;
  if constexpr (Op::has_sums) {
    partials = static_cast<float*>(stream.workspace(row_tiles * columns * static_cast<std::int64_t>(sizeof(float))));
  }
  launch(stream, dim3(static_cast<unsigned>(narrow<int>(row_tiles * column_tiles))), dim3(map_threads), 0,
         map_rows_kernel<T, N, Op>, op, num_rows, columns, tile_rows, static_cast<unsigned>(narrow<int>(column_tiles)),
         partials);
  if constexpr (Op::has_sums) add_column_sums(partials, row_tiles, columns, sums, columns, nullptr, stream);
}

// Whether rows of `columns` elements can be moved in packs at all these addresses.
template <typename T, typename... Pointers>
bool fits_packs(std::int64_t columns, const Pointers*... addresses) {
  return columns % vector_elems<T> == 0 && (is_aligned(addresses, 16) && ...);
}

}  // namespace potato::cuda

#endif
