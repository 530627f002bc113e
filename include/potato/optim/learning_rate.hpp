// The learning rate as a function of the step.
#pragma once

#include <cstdint>

#include "potato/config/config.hpp"

namespace potato {

// The rate of update `step` (0-based) of `num_steps`. Linear warm-up over warmup_steps to learning_rate; then constant,
// or linear or cosine (Loshchilov and Hutter, arXiv 1608.03983) down to min_learning_rate at num_steps.
double learning_rate_at(const OptimizerConfig& optimizer, std::int64_t num_steps, std::int64_t step);

}  // namespace potato
