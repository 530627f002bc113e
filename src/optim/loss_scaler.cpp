#include "potato/optim/loss_scaler.hpp"

#include <algorithm>
#include <cmath>

#include "potato/core/error.hpp"

namespace potato {

LossScaler::LossScaler(const PrecisionConfig& config) : config_(config), is_active_(config.dtype == Precision::fp16) {
  if (!is_active_) return;
  state_.scale = is_dynamic() ? std::ldexp(1.0, static_cast<int>(config_.initial_scale_power)) : config_.loss_scale;
  state_.hysteresis_left = config_.hysteresis;
}

void LossScaler::update(bool overflowed) {
  if (!is_active_) return;
  if (overflowed) {
    ++state_.consecutive_skips;
    state_.steps_since_overflow = 0;
    if (!is_dynamic()) return;
    if (state_.hysteresis_left > 1) {
      --state_.hysteresis_left;
    } else {
      state_.scale = std::max(state_.scale / 2, config_.min_loss_scale);
    }
    return;
  }
  state_.consecutive_skips = 0;
  if (!is_dynamic() || ++state_.steps_since_overflow < config_.loss_scale_window) return;
  state_.steps_since_overflow = 0;
  state_.hysteresis_left = config_.hysteresis;
  constexpr double most = 0x1p126;  // fp32 holds it and its inverse
  state_.scale = std::min(state_.scale * 2, most);
}

void LossScaler::restore(const State& state) {
  PC_CHECK(state.scale > 0 && std::isfinite(state.scale) && state.steps_since_overflow >= 0 &&
               state.hysteresis_left >= 1 && state.consecutive_skips >= 0,
           "scale ", state.scale, ", ", state.steps_since_overflow, " steps since an overflow, hysteresis ",
           state.hysteresis_left, ", ", state.consecutive_skips, " skips in a row");
  if (!is_active_) return;
  const double fixed_scale = state_.scale;
  state_ = state;
  if (!is_dynamic()) state_.scale = fixed_scale;
}

}  // namespace potato
