// Building blocks of the tensor core attention kernels: tiles in shared memory and products of a warp.
//
// A tile is [rows, DP + 8] of 16-bit elements: D padded with zeros to DP, and 16 bytes more, so that rows begin an odd
// number of 16-byte units apart and the eight rows of a matrix lie in different banks.
//
// A warp owns 16·MT rows of a product. acc[mt][nt] is 16 x 8 of it, in the layout of multiply_add: lane 4g + i has rows
// g (elements 0, 1) and g + 8 (elements 2, 3), columns 2i and 2i + 1. Results become the left operand of the next
// product without leaving registers.
#pragma once

#include "attention_args.cuh"
#include "attention_ptx.cuh"

namespace potato::cuda {

constexpr int mma_warps = 4;
constexpr int mma_threads = mma_warps * warp_lanes;

template <int DP>
inline constexpr int tile_stride = DP + 8;
template <int DP>
inline constexpr int tile_row_bytes = 2 * tile_stride<DP>;

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % warp_lanes; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / warp_lanes; }

// Starts copying rows of a head, `row_elems` apart, to a tile of ROWS; zeros beyond `num_rows` and beyond D.
template <typename T, int DP, int ROWS>
__device__ __forceinline__ void load_tile(const T* rows, int row_elems, int num_rows, int head_dim, bool is_vector,
                                          T* tile) {
  if (is_vector) {
    constexpr int chunks = DP / 8;
    static_assert(ROWS * chunks % mma_threads == 0);
    const unsigned shared = shared_address(tile);
#pragma unroll
    for (int i = 0; i < ROWS * chunks / mma_threads; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * mma_threads;
      const int row = index / chunks;
      const int column = index % chunks * 8;
      const bool valid = row < num_rows && column < head_dim;
      copy_async<16>(shared + row * tile_row_bytes<DP> + column * 2, valid ? rows + row * row_elems + column : rows,
                     valid);
    }
  } else {
    for (int index = static_cast<int>(threadIdx.x); index < ROWS * DP; index += mma_threads) {
      const int row = index / DP;
      const int column = index % DP;
      const bool valid = row < num_rows && column < head_dim;
      tile[row * tile_stride<DP> + column] = valid ? rows[row * row_elems + column] : from_float<T>(0);
    }
  }
}

// Byte offsets of this lane's rows for load_matrices. `left`: 16 x 16 of a left operand, and, transposed, of a right
// operand stored [k, n]. `right`: of a right operand stored [n, k].
template <int DP>
__device__ __forceinline__ unsigned left_lane_bytes() {
  const int lane = lane_index();
  return static_cast<unsigned>((lane & 15) * tile_row_bytes<DP> + (lane >> 4) * 16);
}
template <int DP>
__device__ __forceinline__ unsigned right_lane_bytes() {
  const int lane = lane_index();
  return static_cast<unsigned>(((lane & 7) + (lane >> 4) * 8) * tile_row_bytes<DP> + ((lane >> 3) & 1) * 16);
}

// The warp's rows of a tile as left operand; HELD keeps them in registers.
template <int DP, int MT, bool HELD>
struct LeftRows {
  unsigned address;
  unsigned held[HELD ? MT : 1][HELD ? DP / 16 : 1][4];

  // `tile` is the warp's first row.
  __device__ __forceinline__ explicit LeftRows(const void* tile)
      : address(shared_address(tile) + left_lane_bytes<DP>()) {}

  // When the tile is there.
  __device__ __forceinline__ void hold() {
    if constexpr (HELD) {
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
        for (int k = 0; k < DP / 16; ++k) load_matrices(held[mt][k], address + mt * 16 * tile_row_bytes<DP> + k * 32);
      }
    }
  }
  __device__ __forceinline__ void get(int mt, int k, unsigned (&out)[4]) const {
    if constexpr (HELD) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = held[mt][k][i];
    } else {
      load_matrices(out, address + mt * 16 * tile_row_bytes<DP> + k * 32);
    }
  }
};

// acc = left [16·MT, DP] · (right [8·NT, DP])ᵀ. `right`: shared address of the tile's first row.
template <typename T, int DP, int MT, int NT, bool HELD>
__device__ __forceinline__ void multiply_rows(const LeftRows<DP, MT, HELD>& left, unsigned right,
                                              float (&acc)[MT][NT][4]) {
  static_assert(NT % 2 == 0);
  const unsigned address = right + right_lane_bytes<DP>();
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[mt][nt][i] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < DP / 16; ++k) {
    unsigned a[MT][4];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) left.get(mt, k, a[mt]);
#pragma unroll
    for (int pair = 0; pair < NT / 2; ++pair) {
      unsigned b[4];
      load_matrices(b, address + pair * 16 * tile_row_bytes<DP> + k * 32);
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        multiply_add<T>(acc[mt][2 * pair], a[mt], b[0], b[1]);
        multiply_add<T>(acc[mt][2 * pair + 1], a[mt], b[2], b[3]);
      }
    }
  }
}

// out += weights [16·MT, 8·NT] · right [8·NT, DP], the weights rounded to T.
template <typename T, int DP, int MT, int NT>
__device__ __forceinline__ void add_product(const float (&weights)[MT][NT][4], unsigned right,
                                            float (&out)[MT][DP / 8][4]) {
  const unsigned address = right + left_lane_bytes<DP>();
#pragma unroll
  for (int k = 0; k < NT / 2; ++k) {
    unsigned a[MT][4];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      a[mt][0] = pack_two<T>(weights[mt][2 * k][0], weights[mt][2 * k][1]);
      a[mt][1] = pack_two<T>(weights[mt][2 * k][2], weights[mt][2 * k][3]);
      a[mt][2] = pack_two<T>(weights[mt][2 * k + 1][0], weights[mt][2 * k + 1][1]);
      a[mt][3] = pack_two<T>(weights[mt][2 * k + 1][2], weights[mt][2 * k + 1][3]);
    }
#pragma unroll
    for (int pair = 0; pair < DP / 16; ++pair) {
      unsigned b[4];
      load_matrices_transposed(b, address + k * 16 * tile_row_bytes<DP> + pair * 32);
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        multiply_add<T>(out[mt][2 * pair], a[mt], b[0], b[1]);
        multiply_add<T>(out[mt][2 * pair + 1], a[mt], b[2], b[3]);
      }
    }
  }
}

// Writes the warp's rows of a result, each times its factor, through the warp's own rows of a tile, which no other
// warp may read any more. `rows`: the first row in global memory.
template <typename T, int DP, int MT>
__device__ __forceinline__ void store_rows(const float (&acc)[MT][DP / 8][4], const float (&factor)[MT][2], T* tile,
                                           T* rows, int row_elems, int num_rows, int head_dim, bool is_vector) {
  const int lane = lane_index();
  __syncwarp();
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* row = tile + (mt * 16 + half * 8 + lane / 4) * tile_stride<DP> + lane % 4 * 2;
      const float f = factor[mt][half];
#pragma unroll
      for (int dt = 0; dt < DP / 8; ++dt) {
        *reinterpret_cast<unsigned*>(row + dt * 8) =
            pack_two<T>(acc[mt][dt][2 * half] * f, acc[mt][dt][2 * half + 1] * f);
      }
    }
  }
  __syncwarp();
  constexpr int chunks = DP / 8;
  for (int index = lane; index < 16 * MT * chunks; index += warp_lanes) {
    const int row = index / chunks;
    const int column = index % chunks * 8;
    if (row >= num_rows || column >= head_dim) continue;
    const T* from = tile + row * tile_stride<DP> + column;
    T* to = rows + row * row_elems + column;
    if (is_vector) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8 && column + i < head_dim; ++i) to[i] = from[i];
    }
  }
}

// The mask of 16 queries x 8·NT keys in the layout of acc: bit 4·nt + e of keep[half] belongs to element 2·half + e of
// tile nt. Each lane draws one block of four channels a tile, so nothing is drawn twice.
template <int NT>
__device__ __forceinline__ void draw_mask(const HeadMask& mask, int first_query, int first_key, unsigned (&keep)[2]) {
  static_assert(NT <= 8);
  const int lane = lane_index();
  unsigned drawn = 0;
#pragma unroll 2
  for (int nt = 0; nt < NT; ++nt) {
    drawn |= mask.keep_four(first_query + (lane & 15), first_key + nt * 8 + (lane >> 4) * 4) << (4 * nt);
  }
  const int source = (lane & 3) / 2 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    keep[half] = __shfl_sync(0xFFFFFFFFU, drawn, source + 8 * half) >> (2 * (lane & 1));
  }
}

// The same for 16 keys x 8·NT queries: bit 4·nt of keep[2·half + e] belongs to element 2·half + e of tile nt.
template <int NT>
__device__ __forceinline__ void draw_mask_transposed(const HeadMask& mask, int first_key, int first_query,
                                                     unsigned (&keep)[4]) {
  static_assert(NT <= 8);
  const int lane = lane_index();
  unsigned drawn = 0;
#pragma unroll 2
  for (int nt = 0; nt < NT; ++nt) {
    drawn |= mask.keep_four(first_query + nt * 8 + (lane & 7), first_key + (lane >> 3) * 4) << (4 * nt);
  }
  const int row = lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int source = (row / 4 + i / 2 * 2) * 8 + (lane & 3) * 2 + i % 2;
    keep[i] = __shfl_sync(0xFFFFFFFFU, drawn, source) >> (row & 3);
  }
}

}  // namespace potato::cuda
