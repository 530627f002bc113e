// Backward attention on Hopper's warpgroup products: the two kernels of attention_backward.cuh (same formulas, no
// atomics, each result summed by one warp in a fixed order), built like the forward kernel: thread blocks that stay, a
// warp that lets the copy engine bring tiles through a ring, and two warpgroups on their own.
#pragma once

#include "attention_backward.cuh"
#include "attention_wgmma.cuh"

namespace potato::cuda {

// Of both kernels: a block of 128 rows of two tensors (keys and values, or queries and dy), and a ring of tiles of 64
// rows of the other two.
template <int DP>
struct WgmmaBackwardTile {
  static constexpr int stages = DP <= 64 ? 3 : 2;
  static constexpr int blocks = DP <= 64 ? 2 : 1;       // of 128 rows, of each tensor
  static constexpr int part_rows = DP <= 64 ? 64 : 32;  // of a ring tile in one product; registers are scarce
  static constexpr int block_bytes = panel_tile_bytes<DP, block_rows>;
  static constexpr int ring_bytes = panel_tile_bytes<DP, ring_rows>;
  static constexpr int stat_bytes = 2 * ring_rows * 4;  // lse and row sums of a tile of queries
  static constexpr int out_bytes = consumer_warps * 16 * tile_row_bytes<DP>;
  static constexpr int barrier_bytes = 256;
  static constexpr std::size_t shared_bytes =
      1024 + 2 * blocks * block_bytes + stages * (2 * ring_bytes + stat_bytes) + out_bytes + barrier_bytes;
};

// Addresses of everything in shared memory.
template <int DP>
struct WgmmaBackwardMemory {
  using Tile = WgmmaBackwardTile<DP>;
  unsigned char* memory;
  Ring<Tile::blocks> block_ring;
  Ring<Tile::stages> ring;

  __device__ __forceinline__ explicit WgmmaBackwardMemory(unsigned char* shared) : memory(aligned_shared(shared)) {
    const unsigned barriers = shared_address(memory + barrier_offset);
    block_ring = {barriers, barriers + 8 * Tile::blocks};
    ring = {barriers + 16 * Tile::blocks, barriers + 16 * Tile::blocks + 8 * Tile::stages};
  }

  static constexpr int ring_offset = 2 * Tile::blocks * Tile::block_bytes;
  static constexpr int stat_offset = ring_offset + 2 * Tile::stages * Tile::ring_bytes;
  static constexpr int out_offset = stat_offset + Tile::stages * Tile::stat_bytes;
  static constexpr int barrier_offset = out_offset + Tile::out_bytes;

  // Tensor 0 or 1 of the two.
  __device__ __forceinline__ unsigned block(int tensor, int use) const {
    return shared_address(memory) +
           static_cast<unsigned>((tensor * Tile::blocks + block_ring.stage(use)) * Tile::block_bytes);
  }
  __device__ __forceinline__ unsigned tile(int tensor, int use) const {
    return shared_address(memory) +
           static_cast<unsigned>(ring_offset + (tensor * Tile::stages + ring.stage(use)) * Tile::ring_bytes);
  }
  // [ring_rows] lse, then [ring_rows] row sums.
  __device__ __forceinline__ float* stats(int use) const {
    return reinterpret_cast<float*>(memory + stat_offset + ring.stage(use) * Tile::stat_bytes);
  }
  template <typename T>
  __device__ __forceinline__ T* warp_out(int warp) const {
    return reinterpret_cast<T*>(memory + out_offset) + warp * 16 * tile_stride<DP>;
  }
  // `ring_arrivals`: of the producer, for each tile of the ring. Ends with a barrier of all threads.
  __device__ __forceinline__ void init_barriers(unsigned ring_arrivals) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Tile::blocks; ++i) {
        init_barrier(block_ring.full_at(i), 1);
        init_barrier(block_ring.empty_at(i), consumer_warps);
      }
      for (int i = 0; i < Tile::stages; ++i) {
        init_barrier(ring.full_at(i), ring_arrivals);
        init_barrier(ring.empty_at(i), consumer_warps);
      }
      fence_barrier_init();
    }
    __syncthreads();
  }
};

#if PC_HAS_WGMMA

// Scores of 16 keys x 8·NT queries become probabilities. `lse` begins at this lane's first query; `diagonal`: this
// lane's first key − its first query; causal where `masked`.
template <int NT>
__device__ __forceinline__ void probabilities_by_key(float (&scores)[NT][4], const float* lse, float scale_log2,
                                                     bool masked, int diagonal) {
  constexpr float log2_e = 1.4426950408889634F;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    const float2 column = *reinterpret_cast<const float2*>(lse + nt * 8);
    const float shift[2] = {column.x * log2_e, column.y * log2_e};
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[nt][i] = fast_exp2(fmaf(scores[nt][i], scale_log2, -shift[i % 2]));
  }
  if (!masked) return;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (nt * 8 + i % 2 < diagonal + i / 2 * 8) scores[nt][i] = 0;
    }
  }
}

// dy·v becomes ds = p · (dy·v − row_sum). `row_sums` begins at this lane's first query.
template <int NT>
__device__ __forceinline__ void differences_by_key(const float (&probabilities)[NT][4], const float* row_sums,
                                                   float (&gradients)[NT][4]) {
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    const float2 column = *reinterpret_cast<const float2*>(row_sums + nt * 8);
    const float sum[2] = {column.x, column.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) gradients[nt][i] = probabilities[nt][i] * (gradients[nt][i] - sum[i % 2]);
  }
}

// The same for 16 queries x 8·NT keys: shift (lse · log2(e)) and row sum of this lane's two rows. `last`: of the keys
// that each row sees, counted from this lane's first key.
template <int NT>
__device__ __forceinline__ void probabilities_by_query(float (&scores)[NT][4], const float (&shift)[2],
                                                       float scale_log2, bool masked, const int (&last)[2]) {
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[nt][i] = fast_exp2(fmaf(scores[nt][i], scale_log2, -shift[i / 2]));
  }
  if (!masked) return;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (nt * 8 + i % 2 > last[i / 2]) scores[nt][i] = 0;
    }
  }
}

template <int NT>
__device__ __forceinline__ void differences_by_query(const float (&probabilities)[NT][4], const float (&row_sum)[2],
                                                     float (&gradients)[NT][4]) {
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) gradients[nt][i] = probabilities[nt][i] * (gradients[nt][i] - row_sum[i / 2]);
  }
}

// dk and dv of 128 keys of one key/value head; see key_gradient_kernel.
template <typename T, int DP>
__global__ void __launch_bounds__(wgmma_threads, 1)
    wgmma_key_gradient_kernel(const AttentionArgs<T> args, const __grid_constant__ WgmmaMaps maps) {
  using Tile = WgmmaBackwardTile<DP>;
  constexpr int nt = Tile::part_rows / 8;
  extern __shared__ unsigned char shared_memory[];
  const WgmmaBackwardMemory<DP> memory(shared_memory);
  memory.init_barriers(1 + warp_lanes);
  const int warp = warp_index();
  const int lane = lane_index();

  if (warp >= consumer_warps) {
    give_registers<producer_registers(1)>();
    if (warp > consumer_warps) return;
    int use = 0;
    int work_use = 0;
    for (std::int64_t work = blockIdx.x; work < num_works(args); work += gridDim.x, ++work_use) {
      const WorkPlace place(args, args.num_kv_heads, work);
      const int first = place.tile * block_rows;
      const int first_tile = args.causal ? first / ring_rows : 0;
      const int num_tiles = (args.sequence + ring_rows - 1) / ring_rows;
      memory.block_ring.wait_empty(work_use);
      if (lane == 0) {
        const unsigned full = memory.block_ring.full_at(work_use);
        arrive_expecting(full, 2 * Tile::block_bytes);
        copy_tile<DP, block_rows>(memory.block(0, work_use), maps.block, args.num_heads + place.head, first,
                                  place.sample, full);
        copy_tile<DP, block_rows>(memory.block(1, work_use), maps.block,
                                  args.num_heads + args.num_kv_heads + place.head, first, place.sample, full);
      }
      for (int member = 0; member < args.group(); ++member) {
        const int head = place.head * args.group() + member;
        const std::int64_t stat = (static_cast<std::int64_t>(place.sample) * args.num_heads + head) * args.sequence;
        for (int tile = first_tile; tile < num_tiles; ++tile, ++use) {
          const int row = tile * ring_rows;
          const unsigned full = memory.ring.full_at(use);
          memory.ring.wait_empty(use);
          if (lane == 0) {
            arrive_expecting(full, 2 * Tile::ring_bytes);
            copy_tile<DP, ring_rows>(memory.tile(0, use), maps.ring, head, row, place.sample, full);
            copy_tile<DP, ring_rows>(memory.tile(1, use), maps.ring_grads, head, row, place.sample, full);
          }
          // Zeros beyond T make p = 1, of rows that are all zero.
          const unsigned stats = shared_address(memory.stats(use));
          for (int i = lane; i < 2 * ring_rows; i += warp_lanes) {
            const float* from = (i < ring_rows ? args.lse : args.row_sums) + stat;
            const int at = row + i % ring_rows;
            copy_async<4>(stats + static_cast<unsigned>(4 * i), at < args.sequence ? from + at : from,
                          at < args.sequence);
          }
          arrive_after_copies(full);
        }
      }
    }
    wait_for_copies();
    return;
  }
  take_registers<consumer_registers(1)>();

  const int group = warp / 4;
  T* const warp_out = memory.template warp_out<T>(warp);
  int use = 0;
  int work_use = 0;
  for (std::int64_t work = blockIdx.x; work < num_works(args); work += gridDim.x, ++work_use) {
    const WorkPlace place(args, args.num_kv_heads, work);
    const HeadRows<T> shared_head(args, place.sample, place.head * args.group());
    const int first = place.tile * block_rows;
    const int group_first = first + group * group_rows;
    const int warp_first = first + warp * 16;
    const int first_tile = args.causal ? first / ring_rows : 0;
    const int num_tiles = (args.sequence + ring_rows - 1) / ring_rows;
    const auto group_offset = static_cast<unsigned>(group * group_rows * panel_row_bytes);
    const unsigned keys = memory.block(0, work_use) + group_offset;
    const unsigned values = memory.block(1, work_use) + group_offset;
    float dkeys[1][DP / 8][4] = {};
    float dvalues[1][DP / 8][4] = {};
    memory.block_ring.wait_full(work_use);
    float scores[1][nt][4];
    float gradients[1][nt][4];
    unsigned weights[nt / 2][4];
    unsigned differences[nt / 2][4];
    // The products of rows [part, part + part_rows) of a tile of queries, before and after the softmax's derivative.
    const auto score = [&](int at, int part) {
      const auto part_offset = static_cast<unsigned>(part * panel_row_bytes);
      multiply_panels<T, DP, block_rows, ring_rows>(keys, memory.tile(0, at) + part_offset, scores[0]);
      multiply_panels<T, DP, block_rows, ring_rows>(values, memory.tile(1, at) + part_offset, gradients[0]);
      commit_products();
    };
    const auto add = [&](int at, int part) {
      const auto part_offset = static_cast<unsigned>(part * panel_row_bytes);
      add_panels<T, DP, ring_rows>(weights, memory.tile(1, at) + part_offset, dvalues[0]);
      add_panels<T, DP, ring_rows>(differences, memory.tile(0, at) + part_offset, dkeys[0]);
      commit_products();
    };
    // When no more than the PENDING last groups of products may be under way.
    const auto derive = [&]<int PENDING>(std::integral_constant<int, PENDING>, int at, int query, int part) {
      const float* stats = memory.stats(at) + part + lane % 4 * 2;
      const bool masked = args.causal && query < warp_first + 15;
      const int diagonal = warp_first + lane / 4 - query - lane % 4 * 2;
      wait_for_products<PENDING>();
      probabilities_by_key(scores[0], stats, args.scale_log2, masked, diagonal);
      differences_by_key(scores[0], stats + ring_rows, gradients[0]);
    };
    const auto pack = [&] {
      pack_left<T>(scores[0], weights);
      pack_left<T>(gradients[0], differences);
    };
    // Queries before the warpgroup's keys do not see them.
    const int own_first = args.causal ? min(group_first / ring_rows, num_tiles) : 0;
    for (int member = 0; member < args.group(); ++member) {
      int tile = first_tile;
      for (; tile < own_first; ++tile, ++use) {
        memory.ring.wait_full(use);
        memory.ring.release(use);
      }
      if (tile == num_tiles) continue;
      if constexpr (Tile::part_rows == ring_rows) {
        // The sums of one tile run beside the derivative of the next.
        constexpr std::integral_constant<int, 0> none{};
        constexpr std::integral_constant<int, 1> sums{};
        memory.ring.wait_full(use);
        begin_products();
        score(use, 0);
        derive(none, use, tile * ring_rows, 0);
        for (; tile + 1 < num_tiles; ++tile, ++use) {
          wait_for_products<0>();
          if (tile > own_first && tile > first_tile) memory.ring.release(use - 1);
          pack();
          memory.ring.wait_full(use + 1);
          begin_products();
          score(use + 1, 0);
          add(use, 0);
          derive(sums, use + 1, (tile + 1) * ring_rows, 0);
        }
        wait_for_products<0>();
        if (tile > own_first && tile > first_tile) memory.ring.release(use - 1);
        pack();
        begin_products();
        add(use, 0);
        wait_for_products<0>();
        memory.ring.release(use++);
      } else {
        for (; tile < num_tiles; ++tile, ++use) {
          memory.ring.wait_full(use);
#pragma unroll
          for (int part = 0; part < ring_rows; part += Tile::part_rows) {
            begin_products();
            score(use, part);
            derive(std::integral_constant<int, 0>{}, use, tile * ring_rows + part, part);
            pack();
            begin_products();
            add(use, part);
            wait_for_products<0>();
          }
          memory.ring.release(use);
        }
      }
    }
    memory.block_ring.release(work_use);

    const float key_factor[1][2] = {{args.scale, args.scale}};
    const float value_factor[1][2] = {{1, 1}};
    const std::int64_t warp_offset = static_cast<std::int64_t>(warp_first) * args.qkv_elems;
    const int rest = args.sequence - warp_first;
    store_rows<T, DP>(dkeys, key_factor, warp_out, args.dqkv + shared_head.key + warp_offset, args.qkv_elems, rest,
                      args.head_dim, true);
    store_rows<T, DP>(dvalues, value_factor, warp_out, args.dqkv + shared_head.value + warp_offset, args.qkv_elems,
                      rest, args.head_dim, true);
  }
}

// dq of 128 queries of one head; see query_gradient_kernel.
template <typename T, int DP>
__global__ void __launch_bounds__(wgmma_threads, 1)
    wgmma_query_gradient_kernel(const AttentionArgs<T> args, const __grid_constant__ WgmmaMaps maps) {
  using Tile = WgmmaBackwardTile<DP>;
  constexpr int nt = ring_rows / 8;
  extern __shared__ unsigned char shared_memory[];
  const WgmmaBackwardMemory<DP> memory(shared_memory);
  memory.init_barriers(1);
  const int warp = warp_index();
  const int lane = lane_index();
  const auto first_query = [&](const WorkPlace& place) {
    return (args.causal ? args.num_tiles - 1 - place.tile : place.tile) * block_rows;
  };
  const auto num_key_tiles = [&](int first) {
    const int num_rows = min(block_rows, args.sequence - first);
    return ((args.causal ? first + num_rows : args.sequence) + ring_rows - 1) / ring_rows;
  };

  if (warp >= consumer_warps) {
    give_registers<producer_registers(1)>();
    if (warp > consumer_warps || lane != 0) return;
    int use = 0;
    int work_use = 0;
    for (std::int64_t work = blockIdx.x; work < num_works(args); work += gridDim.x, ++work_use) {
      const WorkPlace place(args, args.num_heads, work);
      const int first = first_query(place);
      const int kv_head = place.head / args.group();
      memory.block_ring.wait_empty(work_use);
      const unsigned block_full = memory.block_ring.full_at(work_use);
      arrive_expecting(block_full, 2 * Tile::block_bytes);
      copy_tile<DP, block_rows>(memory.block(0, work_use), maps.block, place.head, first, place.sample, block_full);
      copy_tile<DP, block_rows>(memory.block(1, work_use), maps.block_grads, place.head, first, place.sample,
                                block_full);
      for (int tile = 0; tile < num_key_tiles(first); ++tile, ++use) {
        const unsigned full = memory.ring.full_at(use);
        memory.ring.wait_empty(use);
        arrive_expecting(full, 2 * Tile::ring_bytes);
        copy_tile<DP, ring_rows>(memory.tile(0, use), maps.ring, args.num_heads + kv_head, tile * ring_rows,
                                 place.sample, full);
        copy_tile<DP, ring_rows>(memory.tile(1, use), maps.ring, args.num_heads + args.num_kv_heads + kv_head,
                                 tile * ring_rows, place.sample, full);
      }
    }
    return;
  }
  take_registers<consumer_registers(1)>();

  const int group = warp / 4;
  T* const warp_out = memory.template warp_out<T>(warp);
  int use = 0;
  int work_use = 0;
  for (std::int64_t work = blockIdx.x; work < num_works(args); work += gridDim.x, ++work_use) {
    const WorkPlace place(args, args.num_heads, work);
    const HeadRows<T> head(args, place.sample, place.head);
    const int first = first_query(place);
    const int group_first = first + group * group_rows;
    const int warp_first = first + warp * 16;
    const auto group_offset = static_cast<unsigned>(group * group_rows * panel_row_bytes);
    float shift[1][2];
    float row_sum[1][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_first + half * 8 + lane / 4;
      const bool valid = row < args.sequence;
      shift[0][half] = valid ? args.lse[head.stat + row] * 1.4426950408889634F : 0.0F;
      row_sum[0][half] = valid ? args.row_sums[head.stat + row] : 0.0F;
    }
    const unsigned queries = memory.block(0, work_use) + group_offset;
    const unsigned grads = memory.block(1, work_use) + group_offset;
    float dqueries[1][DP / 8][4] = {};
    memory.block_ring.wait_full(work_use);
    const int num_tiles = num_key_tiles(first);
    const int num_own = args.causal ? min(num_tiles, group_first / ring_rows + 1) : num_tiles;
    float scores[1][nt][4];
    float gradients[1][nt][4];
    unsigned differences[nt / 2][4];
    const auto score = [&](int at) {
      multiply_panels<T, DP, block_rows, ring_rows>(queries, memory.tile(0, at), scores[0]);
      multiply_panels<T, DP, block_rows, ring_rows>(grads, memory.tile(1, at), gradients[0]);
      commit_products();
    };
    const auto add = [&](int at) {
      add_panels<T, DP, ring_rows>(differences, memory.tile(0, at), dqueries[0]);
      commit_products();
    };
    const auto derive = [&]<int PENDING>(std::integral_constant<int, PENDING>, int tile) {
      const int key = tile * ring_rows;
      const bool masked = key + ring_rows > args.sequence || (args.causal && key + ring_rows - 1 > warp_first);
      int last[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_first + lane / 4 + half * 8;
        last[half] = (args.causal && row < args.sequence ? row : args.sequence - 1) - key - lane % 4 * 2;
      }
      wait_for_products<PENDING>();
      probabilities_by_query(scores[0], shift[0], args.scale_log2, masked, last);
      differences_by_query(scores[0], row_sum[0], gradients[0]);
    };
    constexpr std::integral_constant<int, 0> none{};
    constexpr std::integral_constant<int, 1> sums{};
    memory.ring.wait_full(use);
    begin_products();
    score(use);
    derive(none, 0);
    int tile = 0;
    for (; tile + 1 < num_own; ++tile, ++use) {
      wait_for_products<0>();
      if (tile > 0) memory.ring.release(use - 1);
      pack_left<T>(gradients[0], differences);
      memory.ring.wait_full(use + 1);
      begin_products();
      score(use + 1);
      add(use);
      derive(sums, tile + 1);
    }
    wait_for_products<0>();
    if (tile > 0) memory.ring.release(use - 1);
    pack_left<T>(gradients[0], differences);
    begin_products();
    add(use);
    wait_for_products<0>();
    memory.ring.release(use++);
    for (++tile; tile < num_tiles; ++tile, ++use) {
      memory.ring.wait_full(use);
      memory.ring.release(use);
    }
    memory.block_ring.release(work_use);

    const float factor[1][2] = {{args.scale, args.scale}};
    store_rows<T, DP>(dqueries, factor, warp_out,
                      args.dqkv + head.query + static_cast<std::int64_t>(warp_first) * args.qkv_elems, args.qkv_elems,
                      args.sequence - warp_first, args.head_dim, true);
  }
}

#else

template <typename T, int DP>
__global__ void wgmma_key_gradient_kernel(const AttentionArgs<T>, const __grid_constant__ WgmmaMaps) {
  __trap();
}
template <typename T, int DP>
__global__ void wgmma_query_gradient_kernel(const AttentionArgs<T>, const __grid_constant__ WgmmaMaps) {
  __trap();
}

#endif  // PC_HAS_WGMMA

}  // namespace potato::cuda
