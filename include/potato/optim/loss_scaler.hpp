#pragma once
#include "potato/config/config.hpp"
namespace potato {
class LossScaler {
 public:
  struct State { double scale=1; std::int64_t steps_since_overflow=0, hysteresis_left=1, consecutive_skips=0; };
  explicit LossScaler(const PrecisionConfig& c) : active_(c.dtype==Precision::fp16) { if(active_) s_.scale = c.loss_scale>0?c.loss_scale:65536; }
  double scale() const { return s_.scale; }
  bool is_active() const { return active_; }
  bool gave_up() const { return false; }
  State state() const { return s_; }
  void restore(const State& s) { s_ = s; }
  void update(bool o) { if (active_ && o) s_.scale/=2; }
 private:
  bool active_; State s_;
};
}
