#include "potato/layers/norm.hpp"

#include "potato/kernels/elementwise.hpp"
#include "potato/kernels/layernorm.hpp"
#include "potato/layers/linear.hpp"

namespace potato {

LayerNorm::LayerNorm(const LayerContext& ctx, const std::string& name, std::int64_t width)
    : weight_(&declare_replicated_vector(ctx, name + ".weight", width, InitKind::ones)),
      bias_(&declare_replicated_vector(ctx, name + ".bias", width, InitKind::zeros)) {}

void LayerNorm::forward(const LayerContext& ctx, ConstTensorView x, Saved& saved) const {
  saved.mean = ctx.make_statistic({x.dim(0)});
  saved.rstd = ctx.make_statistic({x.dim(0)});
  saved.output = ctx.make(x.shape);
  layernorm_forward(x, weight_->weight, bias_->weight, eps, saved.output, saved.mean, saved.rstd, ctx.stream);
}

void LayerNorm::forward_after_branch(const LayerContext& ctx, TensorView x, ConstTensorView bias,
                                     ConstTensorView residual, const Dropout& dropout, const TokenRows& rows,
                                     Saved& saved) const {
  saved.mean = ctx.make_statistic({x.dim(0)});
  saved.rstd = ctx.make_statistic({x.dim(0)});
  saved.output = ctx.make(x.shape);
  bias_dropout_add_layernorm_forward(x, bias, residual, x, dropout, rows, weight_->weight, bias_->weight, eps,
                                     saved.output, saved.mean, saved.rstd, ctx.stream);
}

void LayerNorm::restore(const LayerContext& ctx, ConstTensorView x, Saved& saved) const {
  if (saved.output.is_held()) return;
  saved.output = ctx.make(x.shape);
  layernorm_apply(x, weight_->weight, bias_->weight, saved.mean, saved.rstd, saved.output, ctx.stream);
}

Tensor LayerNorm::backward(const LayerContext& ctx, ConstTensorView dy, ConstTensorView x, const Saved& saved,
                           ConstTensorView residual_gradient) const {
  Tensor dx = ctx.make(x.shape);
  if (residual_gradient.num_elems() == 0) {
    fill(dx, 0, ctx.stream);
    residual_gradient = dx;
  }
  ParameterRegistry::zero_if_first(*weight_, ctx.stream);
  ParameterRegistry::zero_if_first(*bias_, ctx.stream);
  layernorm_backward(dy, x, weight_->weight, saved.mean, saved.rstd, residual_gradient, dx, weight_->gradient,
                     bias_->gradient, ctx.stream);
  ctx.registry.accumulated(*weight_);
  ctx.registry.accumulated(*bias_);
  return dx;
}

}  // namespace potato
