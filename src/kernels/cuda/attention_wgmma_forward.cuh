// Forward attention on Hopper's warpgroup products, after FlashAttention-3 (Shah et al., arXiv 2407.08608).
//
// Thread blocks stay and take one piece of work after the other: 128 queries of a head, 64 for each of two warpgroups.
// One warp lets the copy engine bring the queries and tiles of 64 keys and values into a ring, ahead of their use, also
// across pieces; the warpgroups go through the tiles on their own, so that the softmax of one runs beside the products
// of others. Reads q once, k and v once a piece (mostly from the L2 cache), writes y once. Deterministic.
#pragma once

#include "attention_forward.cuh"
#include "attention_wgmma.cuh"

namespace potato::cuda {

template <int DP>
struct WgmmaForwardTile {
  static constexpr int stages = DP <= 64 ? 3 : 2;
  // Narrow heads: two thread blocks, whose softmax runs beside the products of the other; wide ones have registers for
  // only one, and let the products of a tile run beside the softmax of the next.
  static constexpr int blocks_per_sm = DP <= 64 ? 2 : 1;
  static constexpr bool overlaps_tiles = blocks_per_sm == 1;
  static constexpr int query_bytes = panel_tile_bytes<DP, block_rows>;
  static constexpr int ring_bytes = panel_tile_bytes<DP, ring_rows>;  // of keys, and of values
  static constexpr int out_bytes = consumer_warps * 16 * tile_row_bytes<DP>;
  static constexpr int barrier_bytes = 256;
  static constexpr std::size_t shared_bytes =
      1024 + 2 * query_bytes + 2 * stages * ring_bytes + out_bytes + barrier_bytes;
};

#if PC_HAS_WGMMA

template <typename T, int DP>
__global__ void __launch_bounds__(wgmma_threads, WgmmaForwardTile<DP>::blocks_per_sm)
    wgmma_forward_kernel(const AttentionArgs<T> args, const __grid_constant__ WgmmaMaps maps) {
  using Tile = WgmmaForwardTile<DP>;
  constexpr int nt = ring_rows / 8;
  extern __shared__ unsigned char shared_memory[];
  unsigned char* const memory = aligned_shared(shared_memory);
  const unsigned queries = shared_address(memory);                 // [2] tiles
  const unsigned keys = queries + 2 * Tile::query_bytes;           // [stages] tiles
  const unsigned values = keys + Tile::stages * Tile::ring_bytes;  // [stages] tiles
  unsigned char* const out_tiles = memory + 2 * Tile::query_bytes + 2 * Tile::stages * Tile::ring_bytes;
  const unsigned barriers = shared_address(out_tiles + Tile::out_bytes);
  const Ring<2> query_ring{barriers, barriers + 16};
  const Ring<Tile::stages> key_ring{barriers + 32, barriers + 32 + 8 * Tile::stages};
  const int warp = warp_index();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(query_ring.full_at(i), 1);
      init_barrier(query_ring.empty_at(i), consumer_warps);
    }
    for (int i = 0; i < Tile::stages; ++i) {
      init_barrier(key_ring.full_at(i), 1);
      init_barrier(key_ring.empty_at(i), consumer_warps);
    }
    fence_barrier_init();
  }
  __syncthreads();

  const auto first_query = [&](const WorkPlace& place) {  // causal: the last queries see most keys, and start first
    return (args.causal ? args.num_tiles - 1 - place.tile : place.tile) * block_rows;
  };
  const auto num_key_tiles = [&](int first) {
    const int num_rows = min(block_rows, args.sequence - first);
    return ((args.causal ? first + num_rows : args.sequence) + ring_rows - 1) / ring_rows;
  };

  if (warp >= consumer_warps) {
    give_registers<producer_registers(Tile::blocks_per_sm)>();
    if (warp > consumer_warps || lane_index() != 0) return;
    int use = 0;
    int work_use = 0;
    for (std::int64_t work = blockIdx.x; work < num_works(args); work += gridDim.x, ++work_use) {
      const WorkPlace place(args, args.num_heads, work);
      const int first = first_query(place);
      const int kv_head = place.head / args.group();
      query_ring.wait_empty(work_use);
      arrive_expecting(query_ring.full_at(work_use), Tile::query_bytes);
      copy_tile<DP, block_rows>(queries + static_cast<unsigned>(work_use % 2 * Tile::query_bytes), maps.block,
                                place.head, first, place.sample, query_ring.full_at(work_use));
      for (int tile = 0; tile < num_key_tiles(first); ++tile, ++use) {
        const auto offset = static_cast<unsigned>(key_ring.stage(use) * Tile::ring_bytes);
        key_ring.wait_empty(use);
        arrive_expecting(key_ring.full_at(use), 2 * Tile::ring_bytes);
        copy_tile<DP, ring_rows>(keys + offset, maps.ring, args.num_heads + kv_head, tile * ring_rows, place.sample,
                                 key_ring.full_at(use));
        copy_tile<DP, ring_rows>(values + offset, maps.ring, args.num_heads + args.num_kv_heads + kv_head,
                                 tile * ring_rows, place.sample, key_ring.full_at(use));
      }
    }
    return;
  }
  take_registers<consumer_registers(Tile::blocks_per_sm)>();

  const int group = warp / 4;
  T* const warp_out = reinterpret_cast<T*>(out_tiles) + warp * 16 * tile_stride<DP>;
  int use = 0;
  int work_use = 0;
  for (std::int64_t work = blockIdx.x; work < num_works(args); work += gridDim.x, ++work_use) {
    const WorkPlace place(args, args.num_heads, work);
    const HeadRows<T> head(args, place.sample, place.head);
    const int first = first_query(place);
    const int group_first = first + group * group_rows;
    const int warp_first = first + warp * 16;
    const unsigned group_queries =
        queries + static_cast<unsigned>(work_use % 2 * Tile::query_bytes + group * group_rows * panel_row_bytes);
    OnlineSoftmax<DP, 1> softmax;
    float out[1][DP / 8][4] = {};
    query_ring.wait_full(work_use);
    // The tiles that this warpgroup's queries see; the products of one run beside the softmax of the next.
    const int num_tiles = num_key_tiles(first);
    const int num_own = args.causal ? min(num_tiles, group_first / ring_rows + 1) : num_tiles;
    float scores[1][nt][4];
    unsigned weights[nt / 2][4];
    float rescale[1][2];
    const auto score = [&](int at) {
      multiply_panels<T, DP, block_rows, ring_rows>(
          group_queries, keys + static_cast<unsigned>(key_ring.stage(at) * Tile::ring_bytes), scores[0]);
      commit_products();
    };
    const auto weigh = [&](int at) {
      add_panels<T, DP, ring_rows>(weights, values + static_cast<unsigned>(key_ring.stage(at) * Tile::ring_bytes),
                                   out[0]);
      commit_products();
    };
    // Turns the scores of a tile into weights, when the tile before has been added to `out`.
    const auto soften = [&](int tile) {
      const int key = tile * ring_rows;
      if (key + ring_rows > args.sequence || (args.causal && key + ring_rows - 1 > warp_first)) {
        mask_scores(scores, warp_first + lane_index() / 4, key + lane_index() % 4 * 2, args.sequence, args.causal);
      }
      softmax.add_scores(scores, args.scale_log2, rescale);
      if constexpr (Tile::overlaps_tiles) {
        wait_for_products<0>();
        if (tile > 0) key_ring.release(use - 1);
      }
      softmax.scale_out(rescale, out);
      pack_left<T>(scores[0], weights);
    };
    int tile = 0;
    if constexpr (Tile::overlaps_tiles) {
      key_ring.wait_full(use);
      begin_products();
      score(use);
      wait_for_products<0>();
      for (; tile + 1 < num_own; ++tile, ++use) {
        soften(tile);
        key_ring.wait_full(use + 1);
        begin_products();
        score(use + 1);
        begin_products();
        weigh(use);
        wait_for_products<1>();
      }
      soften(tile);
      begin_products();
      weigh(use);
      wait_for_products<0>();
      key_ring.release(use++);
      ++tile;
    } else {
      for (; tile < num_own; ++tile, ++use) {
        key_ring.wait_full(use);
        begin_products();
        score(use);
        wait_for_products<0>();
        soften(tile);
        begin_products();
        weigh(use);
        wait_for_products<0>();
        key_ring.release(use);
      }
    }
    for (; tile < num_tiles; ++tile, ++use) {
      key_ring.wait_full(use);
      key_ring.release(use);
    }
    query_ring.release(work_use);

    float factor[1][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax.row_sum(0, half);
      const int row = warp_first + half * 8 + lane_index() / 4;
      factor[0][half] = 1 / sum;
      if (lane_index() % 4 == 0 && row < args.sequence) {
        args.lse_out[head.stat + row] = softmax.highest[0][half] * args.scale + logf(sum);
      }
    }
    store_rows<T, DP>(out, factor, warp_out,
                      args.y + head.output + static_cast<std::int64_t>(warp_first) * args.y_elems, args.y_elems,
                      args.sequence - warp_first, args.head_dim, true);
  }
}

#else

template <typename T, int DP>
__global__ void wgmma_forward_kernel(const AttentionArgs<T>, const __grid_constant__ WgmmaMaps) {
  __trap();
}

#endif  // PC_HAS_WGMMA

}  // namespace potato::cuda
