// Building blocks of the attention kernels for Hopper (sm_90a): products of a warpgroup on tiles in shared memory
// (wgmma), tiles that the copy engine brings (TMA), and the barriers between both.
//
// A tile of [rows, DP] 16-bit elements lies in panels of 64 columns: [rows, 64], 128 bytes a row, begun at a multiple
// of 1,024 bytes, the eight 16-byte units of a row exchanged by unit ^ (row % 8). The copy engine writes that (128-byte
// swizzle), and wgmma reads it either way round:
//   rows along the product's outer dim ("K-major"): 8 rows are 1,024 bytes apart; 16 columns further is 32 bytes;
//   rows along the inner dim ("MN-major"): 64 columns further is the next panel, 8 rows are 1,024 bytes.
// Sources: PTX ISA 9.0, sections "Asynchronous warpgroup level matrix instructions" and "Tensor maps".
//
// Accumulators [nt][4]: warp w of the warpgroup has rows 16w to 16w + 15 of 64, in the layout of mma's 16 x 8 results,
// so that what the kernels of attention_tiles.cuh do with MT = 1 works on them, and results become left operands
// without leaving registers.
//
// The code exists for sm_90a only; elsewhere the kernels trap, and are never chosen (attention_wgmma.hpp).
#pragma once

#include <cuda.h>

#include "attention_tiles.cuh"

namespace potato::cuda {

// What follows `#if PC_HAS_WGMMA` is compiled for sm_90a only.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PC_HAS_WGMMA 1
#else
#define PC_HAS_WGMMA 0
#endif

constexpr int panel_columns = 64;
constexpr int panel_row_bytes = 128;
constexpr int group_bytes = 8 * panel_row_bytes;  // of 8 rows

template <int DP>
inline constexpr int num_panels = DP / panel_columns;
template <int DP, int ROWS>
inline constexpr int panel_tile_bytes = num_panels<DP>* ROWS* panel_row_bytes;

// --- Barriers in shared memory ---

__device__ __forceinline__ void init_barrier(unsigned barrier, unsigned num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals) : "memory");
}
// Before the copy engine uses barriers that this thread has made.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival, and so many bytes of copies to wait for.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, unsigned num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}
// One arrival as soon as all of this thread's copy_async so far are there.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\t"
      "bra again;\n\t"
      "finished:\n\t"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Stages of memory that go round between a producer and consumers. The n-th use of the ring is stage n % STAGES.
template <int STAGES>
struct Ring {
  unsigned full;   // address of [STAGES] barriers
  unsigned empty;  // the same

  __device__ __forceinline__ static int stage(int use) { return use % STAGES; }
  __device__ __forceinline__ unsigned full_at(int use) const { return full + 8U * static_cast<unsigned>(stage(use)); }
  __device__ __forceinline__ unsigned empty_at(int use) const { return empty + 8U * static_cast<unsigned>(stage(use)); }
  __device__ __forceinline__ void wait_full(int use) const {
    wait_for(full_at(use), static_cast<unsigned>(use / STAGES) & 1U);
  }
  __device__ __forceinline__ void wait_empty(int use) const {
    wait_for(empty_at(use), (static_cast<unsigned>(use / STAGES) & 1U) ^ 1U);
  }
  // By every lane of a consumer warp, when the warp has read the stage for the last time.
  __device__ __forceinline__ void release(int use) const {
    __syncwarp();
    if (lane_index() == 0) arrive(empty_at(use));
  }
};

// --- The copy engine ---

// Copies one panel: rows [row, row + box rows) of a head of a sample; zeros beyond the sequence and the head's width.
__device__ __forceinline__ void copy_panel(unsigned shared, const CUtensorMap& map, int column, int head, int row,
                                           int sample, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(head), "r"(row), "r"(sample), "r"(barrier)
      : "memory");
}

// All panels of a tile.
template <int DP, int ROWS>
__device__ __forceinline__ void copy_tile(unsigned shared, const CUtensorMap& map, int head, int row, int sample,
                                          unsigned barrier) {
#pragma unroll
  for (int panel = 0; panel < num_panels<DP>; ++panel) {
    copy_panel(shared + static_cast<unsigned>(panel * ROWS * panel_row_bytes), map, panel * panel_columns, head, row,
               sample, barrier);
  }
}

#if PC_HAS_WGMMA

// --- Products of a warpgroup ---

// Where a matrix lies in shared memory, for wgmma: 128-byte swizzle.
__device__ __forceinline__ std::uint64_t matrix_descriptor(unsigned shared, unsigned panel_bytes) {
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62;
  return swizzle_128 | std::uint64_t{group_bytes >> 4} << 32 | std::uint64_t{panel_bytes >> 4} << 16 |
         ((shared & 0x3FFFFU) >> 4);
}

// Registers are as the host's program order has them before a product reads or writes them.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last PENDING groups of products are done.
template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define PC_ACC4(a, i) "+f"(a[i][0]), "+f"(a[i][1]), "+f"(a[i][2]), "+f"(a[i][3])
#define PC_ACC16(a, i) PC_ACC4(a, i), PC_ACC4(a, (i) + 1), PC_ACC4(a, (i) + 2), PC_ACC4(a, (i) + 3)
#define PC_REGS16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PC_REGS32 PC_REGS16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PC_REGS64                                                                                          \
  PC_REGS32                                                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// acc [64, N] = (or +=, where `adds`) left [64, 16] · right [N, 16]ᵀ, both K-major in shared memory. N = 32 or 64.
template <typename T, int NT>
__device__ __forceinline__ void multiply_shared(float (&acc)[NT][4], std::uint64_t left, std::uint64_t right,
                                                int adds) {
  static_assert(NT == 4 || NT == 8);
#define PC_MULTIPLY(N, TYPE, REGS, A, B, C, ...)                                                       \
  asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, " C                                         \
               ", 0;\n\t"                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" REGS "}, " A ", " B \
               ", adds, 1, 1, 0, 0;\n\t}"                                                              \
               : __VA_ARGS__                                                                           \
               : "l"(left), "l"(right), "r"(adds))
  if constexpr (NT == 8) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      PC_MULTIPLY("64", "bf16", PC_REGS32, "%32", "%33", "%34", PC_ACC16(acc, 0), PC_ACC16(acc, 4));
    } else {
      PC_MULTIPLY("64", "f16", PC_REGS32, "%32", "%33", "%34", PC_ACC16(acc, 0), PC_ACC16(acc, 4));
    }
  } else {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      PC_MULTIPLY("32", "bf16", PC_REGS16, "%16", "%17", "%18", PC_ACC16(acc, 0));
    } else {
      PC_MULTIPLY("32", "f16", PC_REGS16, "%16", "%17", "%18", PC_ACC16(acc, 0));
    }
  }
#undef PC_MULTIPLY
}

// acc [64, N] += left [64, 16] · right [16, N]; left in registers, right MN-major in shared memory. N = 64 or 128.
template <typename T, int NT>
__device__ __forceinline__ void add_product_shared(float (&acc)[NT][4], const unsigned (&left)[4],
                                                   std::uint64_t right) {
  static_assert(NT == 8 || NT == 16);
#define PC_ADD(N, TYPE, REGS, A, B, ...)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" REGS "}, {" A "}, " B \
               ", 1, 1, 1, 1;"                                                                           \
               : __VA_ARGS__                                                                             \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right))
  if constexpr (NT == 8) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      PC_ADD("64", "bf16", PC_REGS32, "%32, %33, %34, %35", "%36", PC_ACC16(acc, 0), PC_ACC16(acc, 4));
    } else {
      PC_ADD("64", "f16", PC_REGS32, "%32, %33, %34, %35", "%36", PC_ACC16(acc, 0), PC_ACC16(acc, 4));
    }
  } else {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      PC_ADD("128", "bf16", PC_REGS64, "%64, %65, %66, %67", "%68", PC_ACC16(acc, 0), PC_ACC16(acc, 4),
             PC_ACC16(acc, 8), PC_ACC16(acc, 12));
    } else {
      PC_ADD("128", "f16", PC_REGS64, "%64, %65, %66, %67", "%68", PC_ACC16(acc, 0), PC_ACC16(acc, 4), PC_ACC16(acc, 8),
             PC_ACC16(acc, 12));
    }
  }
#undef PC_ADD
}

// acc [64, 8·NT] = left [64, DP] · (right [8·NT, DP])ᵀ. Addresses of the first rows in tiles of so many rows.
template <typename T, int DP, int LEFT_ROWS, int RIGHT_ROWS, int NT>
__device__ __forceinline__ void multiply_panels(unsigned left, unsigned right, float (&acc)[NT][4]) {
#pragma unroll
  for (int k = 0; k < DP / 16; ++k) {
    const int panel = k / 4;
    const auto inside = static_cast<unsigned>(k % 4 * 32);
    multiply_shared<T>(
        acc, matrix_descriptor(left + static_cast<unsigned>(panel * LEFT_ROWS * panel_row_bytes) + inside, 16),
        matrix_descriptor(right + static_cast<unsigned>(panel * RIGHT_ROWS * panel_row_bytes) + inside, 16), k > 0);
  }
}

// The left operand of k step `k` (16 columns) from weights [64, 8·NT], rounded.
template <typename T, int NT>
__device__ __forceinline__ void pack_left(const float (&weights)[NT][4], unsigned (&packed)[NT / 2][4]) {
#pragma unroll
  for (int k = 0; k < NT / 2; ++k) {
    packed[k][0] = pack_two<T>(weights[2 * k][0], weights[2 * k][1]);
    packed[k][1] = pack_two<T>(weights[2 * k][2], weights[2 * k][3]);
    packed[k][2] = pack_two<T>(weights[2 * k + 1][0], weights[2 * k + 1][1]);
    packed[k][3] = pack_two<T>(weights[2 * k + 1][2], weights[2 * k + 1][3]);
  }
}

// acc [64, DP] += weights [64, 16·K] · right [16·K, DP], whose tile has RIGHT_ROWS rows.
template <typename T, int DP, int RIGHT_ROWS, int K>
__device__ __forceinline__ void add_panels(const unsigned (&weights)[K][4], unsigned right, float (&acc)[DP / 8][4]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    add_product_shared<T>(acc, weights[k],
                          matrix_descriptor(right + static_cast<unsigned>(k * 16 * panel_row_bytes),
                                            static_cast<unsigned>(RIGHT_ROWS * panel_row_bytes)));
  }
}

// --- Registers move from the warpgroup that brings tiles to those that compute ---

template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
#endif  // PC_HAS_WGMMA

// Of a thread, with so many thread blocks on a multiprocessor. A thread block starts with 168 or 80 a thread (what
// 65,536 allow, in eights), and has no more than these to share out: asking for more would wait for ever.
constexpr int started_registers(int blocks_per_sm) { return blocks_per_sm == 1 ? 168 : 80; }
constexpr int producer_registers(int blocks_per_sm) { return blocks_per_sm == 1 ? 40 : 32; }
constexpr int consumer_registers(int blocks_per_sm) { return blocks_per_sm == 1 ? 232 : 104; }
constexpr bool registers_suffice(int blocks_per_sm) {
  return 2 * consumer_registers(blocks_per_sm) + producer_registers(blocks_per_sm) <=
         3 * started_registers(blocks_per_sm);
}
static_assert(registers_suffice(1) && registers_suffice(2));

// --- What the kernels share ---

constexpr int consumer_groups = 2;
constexpr int consumer_warps = 4 * consumer_groups;
constexpr int wgmma_threads = (consumer_warps + 4) * warp_lanes;  // one warp of the last warpgroup brings the tiles
constexpr int group_rows = 64;                                    // of a warpgroup
constexpr int block_rows = group_rows * consumer_groups;
constexpr int ring_rows = 64;  // of a tile that goes round

// The number-th piece of work, longest first (see TilePlace), as tile of a head of a sample.
struct WorkPlace {
  int tile;
  int head;
  int sample;

  template <typename T>
  __device__ __forceinline__ WorkPlace(const AttentionArgs<T>& args, int num_heads, std::int64_t number) {
    const std::int64_t first_head = number / (args.heads_at_once * args.num_tiles) * args.heads_at_once;
    const std::int64_t rest = args.heads_total - first_head;
    const std::int64_t heads = rest < args.heads_at_once ? rest : args.heads_at_once;
    const std::int64_t local = number - first_head * args.num_tiles;
    tile = static_cast<int>(local / heads);
    const std::int64_t place = first_head + local % heads;
    sample = static_cast<int>(place / num_heads);
    head = static_cast<int>(place % num_heads);
  }
};

template <typename T>
__device__ __forceinline__ std::int64_t num_works(const AttentionArgs<T>& args) {
  return args.heads_total * args.num_tiles;
}

// Dynamic shared memory from its first multiple of 1,024 bytes on.
__device__ __forceinline__ unsigned char* aligned_shared(unsigned char* memory) {
  const unsigned address = shared_address(memory);
  return memory + ((1024U - address % 1024U) % 1024U);
}

// The tensor maps of qkv, y and dy: [B, T, heads, D] with boxes of [rows, 64].
struct WgmmaMaps {
  CUtensorMap block;        // q (or k and v) of qkv, block_rows
  CUtensorMap ring;         // of qkv, ring_rows
  CUtensorMap block_grads;  // dy, block_rows
  CUtensorMap ring_grads;   // dy, ring_rows
};

}  // namespace potato::cuda
