#include "potato/layers/linear.hpp"

#include "potato/kernels/gemm.hpp"
#include "potato/kernels/linear.hpp"

namespace potato {

void accumulate_weight_gradient(const LayerContext& ctx, ConstTensorView dy, ConstTensorView x, Parameter& weight) {
  gemm(dy, true, x, false, weight.gradient, 1, ParameterRegistry::beta(weight), ctx.stream);
  ctx.registry.accumulated(weight);
}

Parameter& declare_replicated_vector(const LayerContext& ctx, const std::string& name, std::int64_t width,
                                     InitKind init) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {width};
  spec.pieces = {{.name = name, .shape = {width}, .begin = {0, 0}, .count = {width, 1}}};
  spec.sharing = Sharing::replicated;
  spec.is_owner = ctx.tensor.rank() == 0;
  spec.init = init;
  return ctx.registry.declare(std::move(spec));
}

void Linear::forward(const LayerContext& ctx, ConstTensorView x, TensorView y) const {
  gemm(x, false, weight_->weight, true, y, 1, 0, ctx.stream);
}

void Linear::backward_input(const LayerContext& ctx, ConstTensorView dy, TensorView dx) const {
  gemm(dy, false, weight_->weight, false, dx, 1, 0, ctx.stream);
}

void Linear::backward_weight(const LayerContext& ctx, ConstTensorView dy, ConstTensorView x) const {
  accumulate_weight_gradient(ctx, dy, x, *weight_);
}

ColumnLinear::ColumnLinear(const LayerContext& ctx, const std::string& name, const std::vector<LogicalLinear>& logical,
                           std::int64_t num_in, double init_std) {
  ParameterSpec weight;
  ParameterSpec bias;
  weight.name = name + ".weight";
  bias.name = name + ".bias";
  std::int64_t num_out_local = 0;
  for (const auto& part : logical) {
    PC_CHECK(part.num_out % ctx.tensor.num_ranks() == 0, part.name, ": ", part.num_out, " outputs");
    const std::int64_t local = part.num_out / ctx.tensor.num_ranks();
    const std::int64_t begin = local * ctx.tensor.rank();
    weight.pieces.push_back({.name = part.name + ".weight",
                             .shape = {part.num_out, num_in},
                             .begin = {begin, 0},
                             .count = {local, num_in},
                             .offset_elems = num_out_local * num_in});
    bias.pieces.push_back({.name = part.name + ".bias",
                           .shape = {part.num_out},
                           .begin = {begin, 0},
                           .count = {local, 1},
                           .offset_elems = num_out_local});
    num_out_local += local;
  }
  weight.shape = {num_out_local, num_in};
  weight.decay = true;
  weight.init = InitKind::normal;
  weight.init_std = init_std;
  bias.shape = {num_out_local};
  weight_ = &ctx.registry.declare(std::move(weight));
  bias_ = &ctx.registry.declare(std::move(bias));
}

void ColumnLinear::forward_bias(const LayerContext& ctx, ConstTensorView x, TensorView y) const {
  linear_bias(x, weight_->weight, bias_->weight, y, ctx.stream);
}

void ColumnLinear::forward_bias_gelu(const LayerContext& ctx, ConstTensorView x, TensorView pre, TensorView y) const {
  linear_bias_gelu(x, weight_->weight, bias_->weight, pre, y, ctx.stream);
}

RowLinear::RowLinear(const LayerContext& ctx, const std::string& name, std::int64_t num_out, std::int64_t num_in,
                     double init_std) {
  PC_CHECK(num_in % ctx.tensor.num_ranks() == 0, name, ": ", num_in, " inputs");
  const std::int64_t local = num_in / ctx.tensor.num_ranks();
  ParameterSpec weight;
  weight.name = name + ".weight";
  weight.shape = {num_out, local};
  weight.pieces = {{.name = weight.name,
                    .shape = {num_out, num_in},
                    .begin = {0, local * ctx.tensor.rank()},
                    .count = {num_out, local}}};
  weight.decay = true;
  weight.init = InitKind::normal;
  weight.init_std = init_std;
  weight_ = &ctx.registry.declare(std::move(weight));
  bias_ = &declare_replicated_vector(ctx, name + ".bias", num_out, InitKind::zeros);
}

void RowLinear::backward_input_gelu(const LayerContext& ctx, ConstTensorView dy, ConstTensorView pre, TensorView dpre,
                                    Parameter& bias_before) const {
  ParameterRegistry::zero_if_first(bias_before, ctx.stream);
  linear_gelu_backward(dy, weight_->weight, pre, dpre, bias_before.gradient, ctx.stream);
  ctx.registry.accumulated(bias_before);
}

}  // namespace potato
