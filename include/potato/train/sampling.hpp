// Choosing a token from logits.
#pragma once

#include <cstdint>
#include <vector>

#include "potato/config/config.hpp"

namespace potato {

class TokenChooser {
 public:
  TokenChooser(const SampleConfig& config, std::int64_t vocab_size);

  std::int32_t greedy(const double* logits) const;
  // Temperature and top-k; the random number is a function of (sample.seed, sequence, position), so the text is the
  // same on any grid.
  std::int32_t sampled(const double* logits, std::uint64_t sequence, std::int64_t position);

 private:
  SampleConfig config_;
  std::vector<double> weights_;
  std::vector<double> sorted_;
};

}  // namespace potato
