// The loss scale of fp16 training: gradients are made larger so that small ones do not vanish in 16 bits, and smaller
// again when they overflow (Micikevicius et al., arXiv 1710.03740; hysteresis as in DeepSpeed's documentation of its
// fp16 section).
#pragma once

#include <cstdint>

#include "potato/config/config.hpp"

namespace potato {

// The same on every rank, since all are told of the same overflows. For other dtypes than fp16 the scale is 1 and
// stays.
class LossScaler {
 public:
  explicit LossScaler(const PrecisionConfig& config);

  bool is_active() const noexcept { return is_active_; }
  double scale() const noexcept { return state_.scale; }
  // After each step. An overflow halves a dynamic scale, down to min_loss_scale, once `hysteresis` of them have come;
  // loss_scale_window steps without one double it, up to 2^126, and restore the hysteresis.
  void update(bool overflowed);
  // Whether consecutive_skips_limit steps in a row have overflowed.
  bool gave_up() const noexcept { return state_.consecutive_skips >= config_.consecutive_skips_limit; }

  // What a checkpoint keeps.
  struct State {
    double scale = 1;
    std::int64_t steps_since_overflow = 0;
    std::int64_t hysteresis_left = 1;
    std::int64_t consecutive_skips = 0;
  };
  const State& state() const noexcept { return state_; }
  // A fixed scale stays what the configuration says. Throws Error for a state that no run can have.
  void restore(const State& state);

 private:
  bool is_dynamic() const noexcept { return config_.loss_scale == 0; }

  PrecisionConfig config_;
  bool is_active_;
  State state_;
};

}  // namespace potato
