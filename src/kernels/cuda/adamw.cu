// AdamW in one pass: 16 bytes read and 12 written for each weight, and 2 more for a working copy. Elementwise, so
// deterministic and the same for any split of the memory.
#include <cmath>

#include "adamw.hpp"
#include "common.cuh"

namespace potato::cuda {

namespace {

constexpr int block_threads = 256;

// The factors of a step, computed in double and rounded once.
struct Factors {
  float beta1, beta2;
  float one_minus_beta1, one_minus_beta2;
  float keep;         // 1 − lr·wd
  float step_length;  // lr / (1 − b1^t)
  float root_scale;   // 1 / sqrt(1 − b2^t)
  float eps;
  double gradient_scale;
  double max_norm;  // > 0: clips
  bool skip_nonfinite;

  explicit Factors(const AdamWStep& settings)
      : beta1(static_cast<float>(settings.beta1)),
        beta2(static_cast<float>(settings.beta2)),
        one_minus_beta1(static_cast<float>(1 - settings.beta1)),
        one_minus_beta2(static_cast<float>(1 - settings.beta2)),
        keep(static_cast<float>(1 - settings.learning_rate * settings.weight_decay)),
        step_length(static_cast<float>(settings.learning_rate /
                                       (1 - std::pow(settings.beta1, static_cast<double>(settings.step))))),
        root_scale(static_cast<float>(1 / std::sqrt(1 - std::pow(settings.beta2, static_cast<double>(settings.step))))),
        eps(static_cast<float>(settings.eps)),
        gradient_scale(settings.gradient_scale),
        max_norm(settings.max_norm),
        skip_nonfinite(settings.skip_nonfinite) {}
};

// The four arrays of a step; `working_copy` may be null.
template <typename Copy>
struct Arrays {
  float* weight;
  Copy* working_copy;
  const float* gradient;
  float* exp_avg;
  float* exp_avg_sq;
};

template <int N, typename Copy>
__device__ __forceinline__ void update(const Arrays<Copy>& arrays, const Factors& factors, float scale,
                                       std::int64_t i) {
  auto weight = load_pack<N>(arrays.weight + i);
  const auto gradient = load_pack<N>(arrays.gradient + i);
  auto exp_avg = load_pack<N>(arrays.exp_avg + i);
  auto exp_avg_sq = load_pack<N>(arrays.exp_avg_sq + i);
  Pack<Copy, N> copy;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float g = gradient[k] * scale;
    const float m = factors.beta1 * exp_avg[k] + factors.one_minus_beta1 * g;
    const float v = factors.beta2 * exp_avg_sq[k] + factors.one_minus_beta2 * (g * g);
    const float w = weight[k] * factors.keep - factors.step_length * m / (sqrtf(v) * factors.root_scale + factors.eps);
    exp_avg.set(k, m);
    exp_avg_sq.set(k, v);
    weight.set(k, w);
    copy.set(k, w);
  }
  store_pack(arrays.exp_avg + i, exp_avg);
  store_pack(arrays.exp_avg_sq + i, exp_avg_sq);
  store_pack(arrays.weight + i, weight);
  if (arrays.working_copy != nullptr) store_pack(arrays.working_copy + i, copy);
}

// Threads stride over packs of N weights; the last few, fewer than N, are taken singly.
template <int N, typename Copy>
__global__ void __launch_bounds__(block_threads)
    adamw_kernel(Arrays<Copy> arrays, Factors factors, const double* squared_norm, std::int64_t num_elems) {
  if (factors.skip_nonfinite && !isfinite(*squared_norm)) return;
  __shared__ float shared_scale;
  if (threadIdx.x == 0) {
    double scale = factors.gradient_scale;
    if (factors.max_norm > 0) scale *= fmin(1.0, factors.max_norm / (sqrt(*squared_norm) + 1e-6));
    shared_scale = static_cast<float>(scale);
  }
  __syncthreads();
  const float scale = shared_scale;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  const std::int64_t num_threads = static_cast<std::int64_t>(gridDim.x) * block_threads;
  const std::int64_t num_packs = num_elems / N;
  for (std::int64_t p = thread; p < num_packs; p += num_threads) update<N>(arrays, factors, scale, p * N);
  if constexpr (N > 1) {
    const std::int64_t i = num_packs * N + thread;
    if (i < num_elems) update<1>(arrays, factors, scale, i);
  }
}

template <typename Copy>
void launch_adamw(const Arrays<Copy>& arrays, const Factors& factors, const double* squared_norm,
                  std::int64_t num_elems, Stream& stream) {
  constexpr int n = 4;
  const bool vector = is_aligned(arrays.weight, 16) && is_aligned(arrays.gradient, 16) &&
                      is_aligned(arrays.exp_avg, 16) && is_aligned(arrays.exp_avg_sq, 16) &&
                      is_aligned(arrays.working_copy, sizeof(Copy) * n);
  if (vector) {
    launch(stream, num_blocks(num_elems / n, block_threads), block_threads, 0, adamw_kernel<n, Copy>, arrays, factors,
           squared_norm, num_elems);
  } else {
    launch(stream, num_blocks(num_elems, block_threads), block_threads, 0, adamw_kernel<1, Copy>, arrays, factors,
           squared_norm, num_elems);
  }
}

}  // namespace

void adamw(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
           TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream) {
  const bool reads_norm = settings.max_norm > 0 || settings.skip_nonfinite;
  const double* norm = reads_norm ? squared_norm.as<double>() : nullptr;
  const auto run = [&](auto* copy) {
    launch_adamw(Arrays<std::remove_pointer_t<decltype(copy)>>{data_of<float>(weight), copy, data_of<float>(gradient),
                                                               data_of<float>(exp_avg), data_of<float>(exp_avg_sq)},
                 Factors(settings), norm, weight.num_elems(), stream);
  };
  if (working_copy.data == nullptr || working_copy.num_elems() == 0) {
    run(static_cast<__nv_bfloat16*>(nullptr));
  } else if (working_copy.dtype == DType::bf16) {
    run(data_of<__nv_bfloat16>(working_copy));
  } else {
    run(data_of<__half>(working_copy));
  }
}

}  // namespace potato::cuda
