// Linear layers, column- or row-parallel, and how their parameters lie in memory. Weights are [out, in].
#pragma once

#include <string>
#include <vector>

#include "potato/layers/context.hpp"

namespace potato {

// One logical linear layer inside a fused one: q, k and v share one product but stay three logical tensors.
struct LogicalLinear {
  std::string name;          // "layers.3.attn.q"
  std::int64_t num_out = 0;  // global
};

// What both kinds have: y = x · Wᵀ on this rank's part of the weight [N, K], and the products of its backward.
class Linear {
 public:
  // y = x · Wᵀ, without the bias.
  void forward(const LayerContext& ctx, ConstTensorView x, TensorView y) const;
  // dx = dy · W.
  void backward_input(const LayerContext& ctx, ConstTensorView dy, TensorView dx) const;
  // W's gradient += dyᵀ · x. The bias gradient is the caller's.
  void backward_weight(const LayerContext& ctx, ConstTensorView dy, ConstTensorView x) const;

  Parameter& bias() const noexcept { return *bias_; }
  std::int64_t num_out_local() const noexcept { return weight_->spec.shape[0]; }

 protected:
  Linear() = default;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

// Splits the outputs over the tensor axis: x [M, K] is whole, y [M, N_local] a shard, dx a partial sum. Weight
// [N_local, K], bias [N_local]; with several logical layers each one's local rows follow another.
class ColumnLinear : public Linear {
 public:
  ColumnLinear(const LayerContext& ctx, const std::string& name, const std::vector<LogicalLinear>& logical,
               std::int64_t num_in, double init_std);

  // y = x · Wᵀ + bias.
  void forward_bias(const LayerContext& ctx, ConstTensorView x, TensorView y) const;
  // pre = x · Wᵀ + bias; y = gelu(pre).
  void forward_bias_gelu(const LayerContext& ctx, ConstTensorView x, TensorView pre, TensorView y) const;
};

// Splits the inputs over the tensor axis: x [M, K_local] is a shard, y [M, N] a partial sum. Weight [N, K_local]; the
// bias [N] is whole on every rank and is added once, after the reduction, by the caller.
class RowLinear : public Linear {
 public:
  RowLinear(const LayerContext& ctx, const std::string& name, std::int64_t num_out, std::int64_t num_in,
            double init_std);

  // Backward through this layer's input and the GELU before it: dpre = (dy · W) ∘ gelu'(pre); the bias gradient of the
  // layer that made `pre` [M, K_local] += column sums of dpre.
  void backward_input_gelu(const LayerContext& ctx, ConstTensorView dy, ConstTensorView pre, TensorView dpre,
                           Parameter& bias_before) const;
};

// gradient += dyᵀ · x for a weight [N, K]; dy [M, N], x [M, K]. The first accumulation of a step overwrites.
void accumulate_weight_gradient(const LayerContext& ctx, ConstTensorView dy, ConstTensorView x, Parameter& weight);

// A vector of `width` that every tensor rank holds (norm weights, biases of row-parallel layers).
Parameter& declare_replicated_vector(const LayerContext& ctx, const std::string& name, std::int64_t width,
                                     InitKind init);

}  // namespace potato
