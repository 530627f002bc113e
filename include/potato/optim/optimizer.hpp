// AdamW over the flat storage of a registry.
#pragma once

#include <vector>

#include "potato/config/config.hpp"
#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/params/registry.hpp"

namespace potato {

class Optimizer {
 public:
  // Moments start at zero.
  Optimizer(const OptimizerConfig& config, ParameterRegistry& registry, Arena& arena, Stream& stream);

  // One update of all parameters from their reduced gradients. `update` is 1 for the first; squared_norm [1] fp64 is
  // the global squared gradient norm, read on the stream.
  void step(double learning_rate, std::int64_t update, ConstTensorView squared_norm, Stream& stream);

  TensorView exp_avg() const { return exp_avg_.view(); }        // [num_flat_elems], compute dtype
  TensorView exp_avg_sq() const { return exp_avg_sq_.view(); }  // [num_flat_elems], compute dtype

 private:
  OptimizerConfig config_;
  ParameterRegistry& registry_;
  std::vector<FlatRange> decayed_;  // updated with weight decay
  std::vector<FlatRange> plain_;    // without
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
};

}  // namespace potato
