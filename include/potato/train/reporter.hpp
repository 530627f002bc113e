// What a person sees, and the metrics file. Only rank 0 prints; on other ranks all calls do nothing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "potato/config/config.hpp"
#include "potato/train/engine.hpp"

namespace potato {

struct StepRecord {
  std::int64_t step = 0;    // 1 for the first
  std::int64_t tokens = 0;  // seen since the run's first step
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  double step_s = 0;
  double tokens_per_s = 0;
};

class Reporter {
 public:
  // Opens log.metrics; when resuming at `first_step` > 0, lines of later steps are dropped and the rest is kept.
  Reporter(const Config& config, bool is_root, std::int64_t first_step);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // A metrics line for each step, a progress line every log.steps_per_print steps and at the last. Never allocates.
  void step(const StepRecord& record, const PhaseTimes& times, double data_s);
  // Whether step() prints a progress line for this step; the same on all ranks.
  bool prints_step(std::int64_t step) const noexcept {
    return step % config_.log.steps_per_print == 0 || step == config_.train.steps || step == 1;
  }
  void evaluation(std::int64_t step, double loss, std::optional<double> bytes_per_token, std::int64_t num_targets);
  void line(const std::string& text) const;

 private:
  Config config_;
  bool is_root_;
  std::FILE* metrics_ = nullptr;
  // Since the last progress line.
  double seconds_ = 0;
  std::int64_t num_steps_ = 0;
  PhaseTimes times_;
  double data_s_ = 0;
};

}  // namespace potato
