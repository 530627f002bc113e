#include "potato/train/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "potato/core/philox.hpp"

namespace potato {

TokenChooser::TokenChooser(const SampleConfig& config, std::int64_t vocab_size)
    : config_(config), weights_(static_cast<std::size_t>(vocab_size)), sorted_(static_cast<std::size_t>(vocab_size)) {}

std::int32_t TokenChooser::greedy(const double* logits) const {
  return static_cast<std::int32_t>(std::max_element(logits, logits + weights_.size()) - logits);
}

std::int32_t TokenChooser::sampled(const double* logits, std::uint64_t sequence, std::int64_t position) {
  if (config_.temperature <= 0) return greedy(logits);
  const auto num_logits = static_cast<std::int64_t>(weights_.size());
  double threshold = -HUGE_VAL;
  if (config_.top_k > 0 && config_.top_k < num_logits) {
    std::copy(logits, logits + num_logits, sorted_.begin());
    const auto kth = sorted_.begin() + config_.top_k - 1;
    std::nth_element(sorted_.begin(), kth, sorted_.end(), std::greater<>());
    threshold = *kth;
  }
  const double largest = *std::max_element(logits, logits + num_logits);
  double total = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    weights_[i] = logits[i] >= threshold ? std::exp((logits[i] - largest) / config_.temperature) : 0;
    total += weights_[i];
  }
  const PhiloxKey key = philox_key(static_cast<std::uint64_t>(config_.seed), "sample");
  const std::uint32_t bits = philox_u32(key, RandomDomain::sampling, sequence, static_cast<std::uint32_t>(position), 0);
  double rest = uniform_from_u32(bits) * total;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    rest -= weights_[i];
    if (rest < 0) return static_cast<std::int32_t>(i);
  }
  return greedy(logits);
}

}  // namespace potato
