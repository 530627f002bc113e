// One pass: 4 elements read and 3 written for each weight. Elementwise, so the same for any number of threads.
#include "adamw.hpp"

#include <algorithm>
#include <cmath>

#include "elementwise.hpp"

namespace potato::cpu {

template <typename T>
void adamw(T* weight, const T* gradient, T* exp_avg, T* exp_avg_sq, const double* squared_norm,
           const AdamWStep& settings, std::int64_t num_elems) {
  // All factors in double, rounded once.
  double clip = 1;
  if (settings.max_norm > 0) clip = std::min(1.0, settings.max_norm / (std::sqrt(*squared_norm) + 1e-6));
  const auto steps = static_cast<double>(settings.step);
  const T scale = static_cast<T>(clip);
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
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weight[i] = weight[i] * keep - step_length * m / (std::sqrt(v) * root_scale + eps);
  }
}

template void adamw(float*, const float*, float*, float*, const double*, const AdamWStep&, std::int64_t);
template void adamw(double*, const double*, double*, double*, const double*, const AdamWStep&, std::int64_t);

}  // namespace potato::cpu
