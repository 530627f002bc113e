// Softmax cross-entropy. A block handles a row at a time, sums over the row in a fixed order; the losses of the rows
// are added up by fixed blocks of rows in fp64. All results are bitwise repeatable.
//
//   M rows, V columns (row_elems, of which num_columns count); S is the stored type of the logits, statistics are fp32.
#include <algorithm>
#include <cfloat>

#include "common.cuh"
#include "cross_entropy.hpp"

namespace potato::cuda {

namespace {

constexpr int max_threads = 1024;
constexpr int max_warps = max_threads / warp_lanes;
// Threads, and rows of a block, where the losses are added up.
constexpr int loss_threads = 256;
constexpr std::int64_t loss_rows = 2048;

// exp with the hardware's power of two: relative error 3e-7 for the arguments that count; results below 1e-38 are 0.
__device__ __forceinline__ float exp_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634F));
  return y;
}

// The values of a pack, with −infinity for those beyond the first `valid`.
template <typename S, int N>
__device__ __forceinline__ void widen(const Pack<S, N>& pack, int valid, float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = pack[i];
  if (valid < N) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = i < valid ? values[i] : -INFINITY;
  }
}

// Stores N values by one access. In assembly, since the compiler takes some of these stores apart.
template <int N, typename S>
__device__ __forceinline__ void store_values(S* address, const float (&values)[N]) {
  if constexpr (N == 8) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(pair_bits<S>(values[0], values[1])),
                 "r"(pair_bits<S>(values[2], values[3])), "r"(pair_bits<S>(values[4], values[5])),
                 "r"(pair_bits<S>(values[6], values[7]))
                 : "memory");
  } else if constexpr (N == 4) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(values[0]), "f"(values[1]),
                 "f"(values[2]), "f"(values[3])
                 : "memory");
  } else {
    *address = from_float<S>(values[0]);
  }
}

// The greatest value so far, and the sum of exp(value − max).
struct OnlineSum {
  float max = -FLT_MAX;
  float sum = 0;

  template <int N>
  __device__ __forceinline__ void add(const float (&values)[N]) {
    float greatest = values[0];
#pragma unroll
    for (int i = 1; i < N; ++i) greatest = fmaxf(greatest, values[i]);
    if (greatest > max) {
      sum *= exp_of(max - greatest);
      max = greatest;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exp_of(values[i] - max);
  }
};

__device__ __forceinline__ OnlineSum warp_total(OnlineSum part) {
  OnlineSum total;
  total.max = warp_reduce(part.max, Max{});
  total.sum = warp_reduce(part.sum * exp_of(part.max - total.max));
  return total;
}

// The same in all threads, with one barrier. `shared` holds max_warps; it may be written again only after another
// barrier, so callers take two in turn.
__device__ __forceinline__ OnlineSum block_total(OnlineSum part, float2* shared) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const OnlineSum of_warp = warp_total(part);
  if (lane == 0) shared[threadIdx.x / warp_lanes] = make_float2(of_warp.max, of_warp.sum);
  __syncthreads();
  OnlineSum mine;
  if (lane < static_cast<int>(blockDim.x) / warp_lanes) {
    mine.max = shared[lane].x;
    mine.sum = shared[lane].y;
  }
  return warp_total(mine);
}

// Calls body(first column, pack) for each pack of a row that holds a valid column, 4 loads in flight.
template <int N, typename S, typename Body>
__device__ __forceinline__ void for_packs(const S* row, int num_columns, Body body) {
  constexpr int in_flight = 4;
  const int num_packs = (num_columns + N - 1) / N;
  for (int begin = static_cast<int>(threadIdx.x); begin < num_packs;
       begin += in_flight * static_cast<int>(blockDim.x)) {
    Pack<S, N> packs[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const int p = begin + k * static_cast<int>(blockDim.x);
      if (p < num_packs) packs[k] = load_pack<N>(row + static_cast<std::int64_t>(p) * N);
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const int p = begin + k * static_cast<int>(blockDim.x);
      if (p < num_packs) body(p * N, packs[k]);
    }
  }
}

// What the gradient of a row is made of: factor · exp(logit − max), less `scale` in the target's column.
struct RowGradient {
  float max;
  float factor;
  float scale;
  int target;  // column; −1: not in this shard

  template <typename S, int N>
  __device__ __forceinline__ void of(const Pack<S, N>& logits, int first, int num_columns, float (&values)[N]) const {
    widen(logits, num_columns - first, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = exp_of(values[i] - max) * factor;
    if (static_cast<unsigned>(target - first) < static_cast<unsigned>(N)) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = first + i == target ? values[i] - scale : values[i];
    }
  }
};

// row[begin, end) = 0; begin and end are multiples of N.
template <int N, typename S>
__device__ __forceinline__ void clear(S* row, int begin, int end) {
  const float zeros[N] = {};
  for (int p = begin / N + static_cast<int>(threadIdx.x); p < end / N; p += static_cast<int>(blockDim.x)) {
    store_values(row + static_cast<std::int64_t>(p) * N, zeros);
  }
}

// The row's gradient in place, padding included.
template <int N, typename S>
__device__ __forceinline__ void write_gradient(S* row, int row_elems, int num_columns, const RowGradient& gradient) {
  for_packs<N>(static_cast<const S*>(row), num_columns, [&](int first, const Pack<S, N>& logits) {
    float values[N];
    gradient.of(logits, first, num_columns, values);
    store_values(row + first, values);
  });
  clear<N>(row, (num_columns + N - 1) / N * N, row_elems);
}

// The target's column in this shard, or −1.
__device__ __forceinline__ int column_of(std::int32_t target, std::int64_t first_token, int num_columns) {
  const std::int64_t column = target - first_token;
  return target >= 0 && column >= 0 && column < num_columns ? static_cast<int>(column) : -1;
}

// Reads the logits once; deterministic.
template <typename S, int N>
__global__ void __launch_bounds__(max_threads) max_kernel(const S* __restrict__ logits, std::int64_t num_rows,
                                                          int row_elems, int num_columns, float* __restrict__ row_max) {
  __shared__ float shared[max_warps];
  for (std::int64_t m = blockIdx.x; m < num_rows; m += gridDim.x) {
    float greatest = -FLT_MAX;
    for_packs<N>(logits + m * row_elems, num_columns, [&](int first, const Pack<S, N>& pack) {
      float values[N];
      widen(pack, num_columns - first, values);
#pragma unroll
      for (int i = 0; i < N; ++i) greatest = fmaxf(greatest, values[i]);
    });
    greatest = block_reduce(greatest, shared, Max{});
    if (threadIdx.x == 0) row_max[m] = greatest;
  }
}

// Reads the logits once; deterministic.
template <typename S, int N>
__global__ void __launch_bounds__(max_threads)
    sums_kernel(const S* __restrict__ logits, std::int64_t num_rows, int row_elems, int num_columns,
                std::int64_t first_token, const std::int32_t* __restrict__ targets, const float* __restrict__ row_max,
                float* __restrict__ sums) {
  __shared__ float shared[max_warps];
  for (std::int64_t m = blockIdx.x; m < num_rows; m += gridDim.x) {
    const S* row = logits + m * row_elems;
    const float greatest = row_max[m];
    float sum = 0;
    for_packs<N>(row, num_columns, [&](int first, const Pack<S, N>& pack) {
      float values[N];
      widen(pack, num_columns - first, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += exp_of(values[i] - greatest);
    });
    sum = block_reduce(sum, shared);
    if (threadIdx.x == 0) {
      const int column = column_of(targets[m], first_token, num_columns);
      sums[m] = sum;
      sums[num_rows + m] = column >= 0 ? to_float(row[column]) - greatest : 0.0F;
    }
  }
}

// Reads and writes the logits once; deterministic.
template <typename S, int N>
__global__ void __launch_bounds__(max_threads)
    backward_kernel(S* logits, std::int64_t num_rows, int row_elems, int num_columns, std::int64_t first_token,
                    const std::int32_t* __restrict__ targets, const float* __restrict__ row_max,
                    const float* __restrict__ sums, float scale) {
  for (std::int64_t m = blockIdx.x; m < num_rows; m += gridDim.x) {
    S* row = logits + m * row_elems;
    if (targets[m] < 0) {
      clear<N>(row, 0, row_elems);
    } else {
      write_gradient<N>(
          row, row_elems, num_columns,
          RowGradient{row_max[m], scale / sums[m], scale, column_of(targets[m], first_token, num_columns)});
    }
  }
}

// --- the sum of the losses ---

struct SplitLosses {  // of cross_entropy_sums
  const float* sums;
  const std::int32_t* targets;
  std::int64_t num_rows;
  __device__ double operator()(std::int64_t m) const {
    return targets[m] < 0 ? 0.0 : log(static_cast<double>(sums[m])) - static_cast<double>(sums[num_rows + m]);
  }
};

struct RowLosses {
  const float* losses;
  std::int64_t num_rows;
  __device__ double operator()(std::int64_t m) const { return static_cast<double>(losses[m]); }
};

// Block b adds up the loss_rows rows from b · loss_rows; one block of the next kernel adds up these parts.
template <typename Losses>
__global__ void __launch_bounds__(loss_threads) loss_parts_kernel(Losses losses, double* __restrict__ parts) {
  __shared__ double shared[loss_threads / warp_lanes];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * loss_rows;
  const std::int64_t end = min(begin + loss_rows, losses.num_rows);
  double sum = 0;
  for (std::int64_t m = begin + threadIdx.x; m < end; m += loss_threads) sum += losses(m);
  sum = block_reduce(sum, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(loss_threads)
    add_parts_kernel(const double* __restrict__ parts, std::int64_t num_parts, double* __restrict__ loss_sum) {
  __shared__ double shared[loss_threads / warp_lanes];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < num_parts; i += loss_threads) sum += parts[i];
  sum = block_reduce(sum, shared);
  if (threadIdx.x == 0) *loss_sum += sum;
}

template <typename Losses>
void add_losses(const Losses& losses, double* loss_sum, Stream& stream) {
  const std::int64_t num_parts = (losses.num_rows + loss_rows - 1) / loss_rows;
  auto* parts = static_cast<double*>(stream.workspace(num_parts * static_cast<std::int64_t>(sizeof(double))));
  launch(stream, static_cast<unsigned>(num_parts), loss_threads, 0, loss_parts_kernel<Losses>, losses, parts);
  launch(stream, 1, loss_threads, 0, add_parts_kernel, static_cast<const double*>(parts), num_parts, loss_sum);
}

// --- all steps at once, for whole rows ---

struct FusedRows {
  std::int64_t num_rows;
  int row_elems;
  int num_columns;
  const std::int32_t* targets;
  float scale;
  float* row_losses;
};

// log-sum-exp − the target's logit; as cross_entropy_loss has it where the target is no column.
__device__ __forceinline__ float loss_of(const OnlineSum& total, std::int32_t target, int num_columns, float logit) {
  if (target < 0) return 0;
  return logf(total.sum) + (target < num_columns ? total.max - logit : 0.0F);
}

// 16 bytes from global to shared memory, without a register in between.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's groups are not complete.
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Persistent blocks; block b handles rows b, b + gridDim.x, … The row lies in shared memory: each thread copies packs
// of its own there, four groups at a time in flight, adds them up as they arrive, and after the one barrier of the row
// turns them into gradients. As soon as it has done with a pack, it copies that of the next row to the same place, so
// that reads and writes go on all the time. Reads the logits once, and writes them once in training; deterministic.
template <typename S, bool training>
__global__ void __launch_bounds__(max_threads) fused_kernel(S* logits, FusedRows rows) {
  constexpr int n = vector_elems<S>;
  constexpr int num_groups = 4;
  extern __shared__ uint4 staged[];
  __shared__ float2 shared[2][max_warps];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int num_packs = (rows.num_columns + n - 1) / n;
  const int group_packs = (num_packs + num_groups * threads - 1) / (num_groups * threads) * threads;
  const auto staged_pack = [&](int p) {
    const uint4 bits = staged[p];
    return __builtin_bit_cast(Pack<S, n>, bits);
  };
  const auto copy_pack = [&](std::int64_t m, int p) {
    if (m < rows.num_rows) copy_async(staged + p, logits + m * rows.row_elems + static_cast<std::int64_t>(p) * n);
  };
  // This thread's packs of one group; always the same ones, so that no other thread is to be waited for.
  const auto for_group = [&](int group, auto body) {
    const int end = min((group + 1) * group_packs, num_packs);
    for (int p = group * group_packs + thread; p < end; p += threads) body(p);
  };

#pragma unroll
  for (int group = 0; group < num_groups; ++group) {
    for_group(group, [&](int p) { copy_pack(blockIdx.x, p); });
    commit_copies();
  }
  int turn = 0;
  for (std::int64_t m = blockIdx.x; m < rows.num_rows; m += gridDim.x, turn ^= 1) {
    const std::int32_t target = rows.targets[m];
    const std::int64_t next = m + gridDim.x;
    const int target_pack = target >= 0 && target < rows.num_columns ? target / n : -1;
    float target_logit = 0;
    OnlineSum online;
    const auto add_group = [&](int group) {
      for_group(group, [&](int p) {
        const Pack<S, n> pack = staged_pack(p);
        if (p == target_pack) target_logit = to_float(reinterpret_cast<const S*>(staged)[target]);
        if constexpr (!training) copy_pack(next, p);
        float values[n];
        widen(pack, rows.num_columns - p * n, values);
        online.add(values);
      });
      if constexpr (!training) commit_copies();
    };
    wait_copies<3>();
    add_group(0);
    wait_copies<training ? 2 : 3>();
    add_group(1);
    wait_copies<training ? 1 : 3>();
    add_group(2);
    wait_copies<training ? 0 : 3>();
    add_group(3);
    const OnlineSum total = block_total(online, shared[turn]);
    if (thread == (target_pack < 0 ? 0 : target_pack % threads)) {
      rows.row_losses[m] = loss_of(total, target, rows.num_columns, target_logit);
    }
    if constexpr (training) {
      S* row = logits + m * rows.row_elems;
      const RowGradient gradient{total.max, rows.scale / total.sum, rows.scale, target_pack < 0 ? -1 : target};
#pragma unroll
      for (int group = 0; group < num_groups; ++group) {
        for_group(group, [&](int p) {
          float values[n];
          gradient.of(staged_pack(p), p * n, rows.num_columns, values);
          if (target < 0) {
#pragma unroll
            for (int i = 0; i < n; ++i) values[i] = 0;
          }
          store_values(row + static_cast<std::int64_t>(p) * n, values);
          copy_pack(next, p);
        });
        commit_copies();
      }
      clear<n>(row, num_packs * n, rows.row_elems);
    }
  }
  wait_copies<0>();
}

// For rows that are not aligned, or do not fit shared memory: reads the logits twice in training. Deterministic.
template <typename S, int N, bool training>
__global__ void __launch_bounds__(max_threads) two_pass_kernel(S* logits, FusedRows rows) {
  __shared__ float2 shared[2][max_warps];
  int turn = 0;
  for (std::int64_t m = blockIdx.x; m < rows.num_rows; m += gridDim.x, turn ^= 1) {
    S* row = logits + m * rows.row_elems;
    const std::int32_t target = rows.targets[m];
    const bool has_target = target >= 0 && target < rows.num_columns;
    // Read by the thread that uses it before the barrier after which the row is overwritten.
    const float target_logit = threadIdx.x == 0 && has_target ? to_float(row[target]) : 0.0F;
    OnlineSum online;
    for_packs<N>(static_cast<const S*>(row), rows.num_columns, [&](int first, const Pack<S, N>& pack) {
      float values[N];
      widen(pack, rows.num_columns - first, values);
      online.add(values);
    });
    const OnlineSum total = block_total(online, shared[turn]);
    if (threadIdx.x == 0) rows.row_losses[m] = loss_of(total, target, rows.num_columns, target_logit);
    if constexpr (training) {
      if (target < 0) {
        clear<N>(row, 0, rows.row_elems);
      } else {
        write_gradient<N>(row, rows.row_elems, rows.num_columns,
                          RowGradient{total.max, rows.scale / total.sum, rows.scale, has_target ? target : -1});
      }
    }
  }
}

int device_attribute(cudaDeviceAttr attribute, const Stream& stream) {
  int value = 0;
  PC_CUDA(cudaDeviceGetAttribute(&value, attribute, stream.device().ordinal));
  return value;
}

int row_elems_of(const ConstTensorView& logits) {
  PC_CHECK(logits.dim(1) < (std::int64_t{1} << 30), "rows of ", logits.dim(1), " columns");
  return static_cast<int>(logits.dim(1));
}

// Threads for rows of `num_items` accesses: about four each.
unsigned row_threads(std::int64_t num_items, std::int64_t most = 512) {
  const std::int64_t warps = (num_items + 4 * warp_lanes - 1) / (4 * warp_lanes);
  return static_cast<unsigned>(std::clamp<std::int64_t>(warps * warp_lanes, warp_lanes, most));
}

unsigned row_blocks(std::int64_t num_rows) {
  return static_cast<unsigned>(std::min<std::int64_t>(num_rows, (std::int64_t{1} << 31) - 1));
}

template <typename S>
bool is_vector(const ConstTensorView& logits) {
  return logits.dim(1) % vector_elems<S> == 0 && is_aligned(logits.data, 16);
}

// Calls body(std::integral_constant<int, N>{}) with the elements of an access that the rows allow.
template <typename S, typename Body>
void with_width(const ConstTensorView& logits, const Body& body) {
  if (is_vector<S>(logits)) {
    body(std::integral_constant<int, vector_elems<S>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

template <typename S, bool training>
void fused(S* logits, const FusedRows& rows, bool vector, Stream& stream) {
  constexpr int n = vector_elems<S>;
  const std::int64_t num_packs = (rows.num_columns + n - 1) / n;
  const std::int64_t row_bytes = num_packs * 16;
  constexpr std::int64_t other_bytes = 2048;  // the kernel's own shared memory, and what the system takes of each block
  if (!vector || row_bytes + other_bytes > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, stream)) {
    const auto kernel = vector ? two_pass_kernel<S, n, training> : two_pass_kernel<S, 1, training>;
    launch(stream, row_blocks(rows.num_rows), row_threads(vector ? num_packs : rows.num_columns), 0, kernel, logits,
           rows);
    return;
  }
  // One block of many threads where two do not fit beside each other.
  const bool two_fit =
      2 * (row_bytes + other_bytes) <= device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, stream);
  const unsigned threads = row_threads(num_packs, two_fit ? 512 : max_threads);
  const auto kernel = fused_kernel<S, training>;
  PC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(row_bytes)));
  int blocks_per_sm = 0;
  PC_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, static_cast<int>(threads),
                                                        static_cast<std::size_t>(row_bytes)));
  const std::int64_t blocks =
      std::int64_t{std::max(blocks_per_sm, 1)} * device_attribute(cudaDevAttrMultiProcessorCount, stream);
  launch(stream, static_cast<unsigned>(std::min(blocks, rows.num_rows)), threads, static_cast<std::size_t>(row_bytes),
         kernel, logits, rows);
}

}  // namespace

void cross_entropy_max(ConstTensorView logits, std::int64_t num_columns, TensorView row_max, Stream& stream) {
  const int row_elems = row_elems_of(logits);
  dispatch_device(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    with_width<S>(logits, [&](auto width) {
      constexpr int n = decltype(width)::value;
      launch(stream, row_blocks(logits.dim(0)), row_threads(num_columns / n), 0, max_kernel<S, n>, data_of<S>(logits),
             logits.dim(0), row_elems, static_cast<int>(num_columns), data_of<float>(row_max));
    });
  });
}

void cross_entropy_sums(ConstTensorView logits, std::int64_t num_columns, std::int64_t first_token,
                        ConstTensorView targets, ConstTensorView row_max, TensorView sums, Stream& stream) {
  const int row_elems = row_elems_of(logits);
  dispatch_device(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    with_width<S>(logits, [&](auto width) {
      constexpr int n = decltype(width)::value;
      launch(stream, row_blocks(logits.dim(0)), row_threads(num_columns / n), 0, sums_kernel<S, n>, data_of<S>(logits),
             logits.dim(0), row_elems, static_cast<int>(num_columns), first_token, targets.as<std::int32_t>(),
             data_of<float>(row_max), data_of<float>(sums));
    });
  });
}

void cross_entropy_loss(ConstTensorView sums, ConstTensorView targets, TensorView loss_sum, Stream& stream) {
  add_losses(SplitLosses{data_of<float>(sums), targets.as<std::int32_t>(), targets.num_elems()}, loss_sum.as<double>(),
             stream);
}

void cross_entropy_backward(TensorView logits, std::int64_t num_columns, std::int64_t first_token,
                            ConstTensorView targets, ConstTensorView row_max, ConstTensorView sums,
                            double gradient_scale, Stream& stream) {
  const int row_elems = row_elems_of(logits);
  dispatch_device(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    with_width<S>(logits, [&](auto width) {
      constexpr int n = decltype(width)::value;
      launch(stream, row_blocks(logits.dim(0)), row_threads(row_elems / n), 0, backward_kernel<S, n>,
             data_of<S>(logits), logits.dim(0), row_elems, static_cast<int>(num_columns), first_token,
             targets.as<std::int32_t>(), data_of<float>(row_max), data_of<float>(sums),
             static_cast<float>(gradient_scale));
    });
  });
}

void cross_entropy_fused(TensorView logits, std::int64_t num_columns, ConstTensorView targets, double gradient_scale,
                         bool training, TensorView row_losses, TensorView loss_sum, Stream& stream) {
  const FusedRows rows{logits.dim(0),
                       row_elems_of(logits),
                       static_cast<int>(num_columns),
                       targets.as<std::int32_t>(),
                       static_cast<float>(gradient_scale),
                       data_of<float>(row_losses)};
  dispatch_device(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    if (training) {
      fused<S, true>(data_of<S>(logits), rows, is_vector<S>(logits), stream);
    } else {
      fused<S, false>(data_of<S>(logits), rows, is_vector<S>(logits), stream);
    }
  });
  add_losses(RowLosses{data_of<float>(row_losses), logits.dim(0)}, loss_sum.as<double>(), stream);
}

}  // namespace potato::cuda
