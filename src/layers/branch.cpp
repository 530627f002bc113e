#include "potato/layers/branch.hpp"

#include <cmath>

#include "potato/kernels/activation.hpp"
#include "potato/kernels/dropout.hpp"

namespace potato {

namespace {

// bias gradient += column sums of dy.
void accumulate_bias_gradient(const LayerContext& ctx, ConstTensorView dy, Parameter& bias) {
  ParameterRegistry::zero_if_first(bias, ctx.stream);
  bias_backward(dy, bias.gradient, ctx.stream);
  ctx.registry.accumulated(bias);
}

}  // namespace

Tensor BranchEnd::forward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor partial, ConstTensorView x,
                          const NextNorm& next) const {
  Tensor y = reduce_rows(ctx, std::move(partial));
  const Dropout dropout = layer_dropout(ctx, micro_batch, dropout_key_);
  const TokenRows rows = token_rows(ctx, micro_batch);
  if (next.norm != nullptr) {
    next.norm->forward_after_branch(ctx, y, bias_->weight, x, dropout, rows, *next.saved);
  } else {
    bias_dropout_add_forward(y, bias_->weight, x, y, dropout, rows, ctx.stream);
  }
  return y;
}

Rows BranchEnd::backward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView dy) const {
  const Dropout dropout = layer_dropout(ctx, micro_batch, dropout_key_);
  if (dropout.p == 0) {
    accumulate_bias_gradient(ctx, dy, *bias_);
    return gather_rows(ctx, dy);
  }
  Tensor masked = ctx.make(dy.shape);
  ParameterRegistry::zero_if_first(*bias_, ctx.stream);
  bias_dropout_add_backward(dy, masked, bias_->gradient, dropout, token_rows(ctx, micro_batch), ctx.stream);
  ctx.registry.accumulated(*bias_);
  Rows all = gather_rows(ctx, masked);
  if (!all.held.is_held()) all.held = std::move(masked);
  return all;
}

AttentionBranch::AttentionBranch(const LayerContext& ctx, const std::string& name, const ModelConfig& model,
                                 double init_std, double residual_init_std)
    : num_heads_local_(model.num_heads / ctx.tensor.num_ranks()),
      head_dim_(model.hidden_size / model.num_heads),
      norm_(ctx, name + ".norm1", model.hidden_size),
      qkv_(ctx, name + ".attn.qkv",
           {{name + ".attn.q", model.hidden_size},
            {name + ".attn.k", model.hidden_size},
            {name + ".attn.v", model.hidden_size}},
           model.hidden_size, init_std),
      out_(ctx, name + ".attn.out", model.hidden_size, model.hidden_size, residual_init_std),
      end_(out_.bias(), philox_key(ctx.seed, name + ".attn.dropout")),
      attention_key_(philox_key(ctx.seed, name + ".attn.probabilities")) {}

AttentionShape AttentionBranch::shape_of(const LayerContext& ctx, const MicroBatch& micro_batch) const {
  return {.batch = micro_batch.batch,
          .sequence = micro_batch.sequence,
          .num_heads = num_heads_local_,
          .num_kv_heads = num_heads_local_,
          .head_dim = head_dim_,
          .causal = true,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim_)),
          .first_head = num_heads_local_ * ctx.tensor.rank(),
          .kernel = ctx.attention,
          .deterministic = ctx.deterministic};
}

Tensor AttentionBranch::forward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x, Saved& saved,
                                const NextNorm& next) const {
  const std::int64_t num_tokens = micro_batch.num_tokens();
  if (!saved.norm.output.is_held()) norm_.forward(ctx, x, saved.norm);
  saved.qkv = ctx.make({num_tokens, qkv_.num_out_local()});
  {
    const Rows normed = gather_rows(ctx, saved.norm.output);
    qkv_.forward_bias(ctx, normed.view, saved.qkv);
  }
  if (ctx.recompute == Recompute::selective) saved.norm.output.reset();
  saved.mix = ctx.make({num_tokens, num_heads_local_ * head_dim_});
  saved.lse = ctx.make_statistic({micro_batch.batch, num_heads_local_, micro_batch.sequence});
  attention_forward(saved.qkv, saved.mix, saved.lse, shape_of(ctx, micro_batch),
                    layer_dropout(ctx, micro_batch, attention_key_), token_rows(ctx, micro_batch, true), ctx.stream);
  Tensor partial = ctx.make({num_tokens, x.dim(1)});
  out_.forward(ctx, saved.mix, partial);
  return end_.forward(ctx, micro_batch, std::move(partial), x, next);
}

Tensor AttentionBranch::backward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView dy,
                                 ConstTensorView x, Saved& saved) const {
  Tensor dqkv;
  {
    Tensor dmix = ctx.make(saved.mix.view().shape);
    {
      const Rows dpartial = end_.backward(ctx, micro_batch, dy);
      out_.backward_input(ctx, dpartial.view, dmix);
      out_.backward_weight(ctx, dpartial.view, saved.mix);
    }
    dqkv = ctx.make(saved.qkv.view().shape);
    const Tensor scratch = ctx.make_statistic(saved.lse.view().shape);
    attention_backward(dmix, saved.qkv, saved.mix, saved.lse, dqkv, scratch, shape_of(ctx, micro_batch),
                       layer_dropout(ctx, micro_batch, attention_key_), token_rows(ctx, micro_batch, true), ctx.stream);
  }
  saved.qkv.reset();
  saved.mix.reset();
  saved.lse.reset();
  accumulate_bias_gradient(ctx, dqkv, qkv_.bias());
  Tensor dnormed = ctx.make({micro_batch.num_tokens(), x.dim(1)});
  qkv_.backward_input(ctx, dqkv, dnormed);
  norm_.restore(ctx, x, saved.norm);
  {
    const Rows normed = gather_rows(ctx, saved.norm.output);
    qkv_.backward_weight(ctx, dqkv, normed.view);
  }
  dqkv.reset();
  const Tensor dshard = reduce_rows(ctx, std::move(dnormed));
  Tensor dx = norm_.backward(ctx, dshard, x, saved.norm, dy);
  saved.norm = {};
  return dx;
}

MlpBranch::MlpBranch(const LayerContext& ctx, const std::string& name, const ModelConfig& model, double init_std,
                     double residual_init_std)
    : norm_(ctx, name + ".norm2", model.hidden_size),
      up_(ctx, name + ".mlp.up", {{name + ".mlp.up", model.ffn_hidden_size}}, model.hidden_size, init_std),
      down_(ctx, name + ".mlp.down", model.hidden_size, model.ffn_hidden_size, residual_init_std),
      end_(down_.bias(), philox_key(ctx.seed, name + ".mlp.dropout")) {}

Tensor MlpBranch::forward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x, Saved& saved,
                          const NextNorm& next) const {
  const std::int64_t num_tokens = micro_batch.num_tokens();
  if (!saved.norm.output.is_held()) norm_.forward(ctx, x, saved.norm);
  saved.pre = ctx.make({num_tokens, up_.num_out_local()});
  saved.act = ctx.make(saved.pre.view().shape);
  {
    const Rows normed = gather_rows(ctx, saved.norm.output);
    up_.forward_bias_gelu(ctx, normed.view, saved.pre, saved.act);
  }
  if (ctx.recompute == Recompute::selective) saved.norm.output.reset();
  Tensor partial = ctx.make({num_tokens, x.dim(1)});
  down_.forward(ctx, saved.act, partial);
  if (ctx.recompute == Recompute::selective) saved.act.reset();
  return end_.forward(ctx, micro_batch, std::move(partial), x, next);
}

Tensor MlpBranch::backward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView dy,
                           ConstTensorView x, Saved& saved) const {
  if (!saved.act.is_held()) {
    saved.act = ctx.make(saved.pre.view().shape);
    gelu_forward(saved.pre, saved.act, ctx.stream);
  }
  Tensor dpre;
  {
    const Rows dpartial = end_.backward(ctx, micro_batch, dy);
    down_.backward_weight(ctx, dpartial.view, saved.act);
    saved.act.reset();
    dpre = ctx.make(saved.pre.view().shape);
    down_.backward_input_gelu(ctx, dpartial.view, saved.pre, dpre, up_.bias());
  }
  saved.pre.reset();
  Tensor dnormed = ctx.make({micro_batch.num_tokens(), x.dim(1)});
  up_.backward_input(ctx, dpre, dnormed);
  norm_.restore(ctx, x, saved.norm);
  {
    const Rows normed = gather_rows(ctx, saved.norm.output);
    up_.backward_weight(ctx, dpre, normed.view);
  }
  dpre.reset();
  const Tensor dshard = reduce_rows(ctx, std::move(dnormed));
  Tensor dx = norm_.backward(ctx, dshard, x, saved.norm, dy);
  saved.norm = {};
  return dx;
}

}  // namespace potato
