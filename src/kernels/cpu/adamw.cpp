// One pass: 4 elements read and 3 written for each weight, 4 with a working copy. Elementwise, so the same for any
// number of threads.
#include "adamw.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "elementwise.hpp"
#include "potato/core/half.hpp"

namespace potato::cpu {

template <typename T, typename Copy>
void adamw(T* weight, Copy* working_copy, const T* gradient, T* exp_avg, T* exp_avg_sq, const double* squared_norm,
           const AdamWStep& settings, std::int64_t num_elems) {
  if (settings.skip_nonfinite && !std::isfinite(*squared_norm)) {
    if constexpr (!std::is_void_v<Copy>) {
#pragma omp parallel for simd schedule(static) if (parallel : num_elems > min_parallel_elems)
      for (std::int64_t i = 0; i < num_elems; ++i) working_copy[i].bits = Copy(weight[i]).bits;
    }
    return;
  }
  // All factors in double, rounded once.
  double clip = 1;
  if (settings.max_norm > 0) clip = std::min(1.0, settings.max_norm / (std::sqrt(*squared_norm) + 1e-6));
  const auto steps = static_cast<double>(settings.step);
  const T scale = static_cast<T>(settings.gradient_scale * clip);
  const T beta1 = static_cast<T>(settings.beta1);
  const T beta2 = static_cast<T>(settings.beta2);
  const T one_minus_beta1 = static_cast<T>(1 - settings.beta1);
  const T one_minus_beta2 = static_cast<T>(1 - settings.beta2);
  const T keep = static_cast<T>(1 - settings.learning_rate * settings.weight_decay);
  const T step_length = static_cast<T>(settings.learning_rate / (1 - std::pow(settings.beta1, steps)));
  const T root_scale = static_cast<T>(1 / std::sqrt(1 - std::pow(settings.beta2, steps)));
  const T eps = static_cast<T>(settings.eps);
#pragma omp parallel for simd schedule(static) if (parallel : num_elems > min_parallel_elems)
  for (std::int64_t i = 0; i < num_elems; ++i) {
    const T g = gradient[i] * scale;
    const T m = beta1 * exp_avg[i] + one_minus_beta1 * g;
    const T v = beta2 * exp_avg_sq[i] + one_minus_beta2 * (g * g);
    const T w = weight[i] * keep - step_length * m / (std::sqrt(v) * root_scale + eps);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weight[i] = w;
    // By bits: a loop that stores a struct is not vectorised.
    if constexpr (!std::is_void_v<Copy>) working_copy[i].bits = Copy(w).bits;
  }
}

#define POTATO_INSTANTIATE(T, Copy) \
  template void adamw(T*, Copy*, const T*, T*, T*, const double*, const AdamWStep&, std::int64_t);
POTATO_INSTANTIATE(float, void)
POTATO_INSTANTIATE(float, BFloat16)
POTATO_INSTANTIATE(float, Float16)
POTATO_INSTANTIATE(double, void)
#undef POTATO_INSTANTIATE

}  // namespace potato::cpu
