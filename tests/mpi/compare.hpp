// How two runs are compared (I1): losses and norms relative, weights against the tensor's largest value.
#pragma once

#include <algorithm>
#include <cmath>

#include "small_model.hpp"

namespace potato::test {

struct Difference {
  double loss = 0;  // largest relative difference
  double norm = 0;
  double weight = 0;    // largest |a − b| / max(max |b|, 0.02) over tensors, key biases left out
  double key_bias = 0;  // largest |a|: zero in exact arithmetic, noise that Adam can amplify
  std::string worst_tensor;
};

inline double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-300); }

inline Difference difference(const RunResult& a, const RunResult& b) {
  Difference result;
  if (a.losses.size() != b.losses.size() || a.weights.size() != b.weights.size()) return {1e9, 1e9, 1e9, 1e9, "shape"};
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    result.loss = std::max(result.loss, relative(a.losses[i], b.losses[i]));
    result.norm = std::max(result.norm, relative(a.norms[i], b.norms[i]));
  }
  result.loss = std::max(result.loss, relative(a.eval_loss, b.eval_loss));
  for (const auto& [name, values] : b.weights) {
    const auto found = a.weights.find(name);
    if (found == a.weights.end() || found->second.size() != values.size()) return {1e9, 1e9, 1e9, 1e9, name};
    double largest = 0.02;
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      worst = std::max(worst, std::abs(found->second[i] - values[i]));
    }
    if (name.find("attn.k.bias") != std::string::npos) {
      for (const double value : found->second) result.key_bias = std::max(result.key_bias, std::abs(value));
    } else if (worst / largest > result.weight) {
      result.weight = worst / largest;
      result.worst_tensor = name;
    }
  }
  return result;
}

inline bool bitwise_equal(const RunResult& a, const RunResult& b) {
  return a.losses == b.losses && a.norms == b.norms && a.eval_loss == b.eval_loss && a.weights == b.weights;
}

}  // namespace potato::test
