#include "potato/optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace potato {

double learning_rate_at(const OptimizerConfig& optimizer, std::int64_t num_steps, std::int64_t step) {
  const double peak = optimizer.learning_rate;
  const double floor = optimizer.min_learning_rate;
  if (step < optimizer.warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(optimizer.warmup_steps);
  }
  const auto decay_steps = static_cast<double>(std::max<std::int64_t>(1, num_steps - optimizer.warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - optimizer.warmup_steps) / decay_steps);
  switch (optimizer.schedule) {
    case LearningRateSchedule::constant:
      return peak;
    case LearningRateSchedule::linear:
      return floor + (peak - floor) * (1 - progress);
    case LearningRateSchedule::cosine:
      return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  return peak;
}

}  // namespace potato
