#include "potato/layers/block.hpp"

#include <cmath>

namespace potato {

namespace {

constexpr double init_std = 0.02;  // GPT-2

// GPT-2 scales the projections that write to the residual stream by 1 / sqrt(2 · layers).
double residual_init_std(const ModelConfig& model) {
  return init_std / std::sqrt(2.0 * static_cast<double>(model.num_layers));
}

}  // namespace

TransformerBlock::TransformerBlock(const LayerContext& ctx, const std::string& name, const ModelConfig& model)
    : attention_(ctx, name, model, init_std, residual_init_std(model)),
      mlp_(ctx, name, model, init_std, residual_init_std(model)) {}

Tensor TransformerBlock::run(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x, Saved& saved,
                             const NextNorm& next) const {
  saved.middle = attention_.forward(ctx, micro_batch, x, saved.attention, {&mlp_.norm(), &saved.mlp.norm});
  return mlp_.forward(ctx, micro_batch, saved.middle, saved.mlp, next);
}

Tensor TransformerBlock::forward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor x, Saved& saved,
                                 const NextNorm& next) const {
  saved.input = std::move(x);
  Tensor y = run(ctx, micro_batch, saved.input, saved, next);
  if (!micro_batch.training) {
    saved = {};
  } else if (ctx.recompute == Recompute::full) {
    saved.middle.reset();
    saved.attention = {};
    saved.mlp = {};
  }
  return y;
}

Tensor TransformerBlock::backward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor dy,
                                  Saved& saved) const {
  if (!saved.middle.is_held()) run(ctx, micro_batch, saved.input, saved, {}).reset();
  Tensor dmiddle = mlp_.backward(ctx, micro_batch, dy, saved.middle, saved.mlp);
  dy.reset();
  saved.middle.reset();
  Tensor dx = attention_.backward(ctx, micro_batch, dmiddle, saved.input, saved.attention);
  saved.input.reset();
  return dx;
}

}  // namespace potato
