#include "potato/layers/embedding.hpp"

#include <algorithm>

#include "potato/kernels/cross_entropy.hpp"
#include "potato/kernels/elementwise.hpp"
#include "potato/kernels/embedding.hpp"
#include "potato/kernels/gemm.hpp"
#include "potato/layers/linear.hpp"
#include "potato/layers/parallel.hpp"

namespace potato {

namespace {

constexpr std::int64_t vocabulary_multiple = 128;  // rows of a shard, for the matrix products

}  // namespace

VocabularyShard vocabulary_shard(std::int64_t vocab_size, int tensor_rank, int num_tensor_ranks) {
  const std::int64_t multiple = vocabulary_multiple * num_tensor_ranks;
  const std::int64_t padded = (vocab_size + multiple - 1) / multiple * multiple;
  VocabularyShard shard;
  shard.num_rows = padded / num_tensor_ranks;
  shard.first = shard.num_rows * tensor_rank;
  shard.num_valid = std::clamp<std::int64_t>(vocab_size - shard.first, 0, shard.num_rows);
  return shard;
}

Parameter& declare_vocabulary_weight(const LayerContext& ctx, const std::string& name, std::int64_t vocab_size,
                                     std::int64_t width, Sharing sharing, bool is_owner) {
  const VocabularyShard shard = vocabulary_shard(vocab_size, ctx.tensor.rank(), ctx.tensor.num_ranks());
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {shard.num_rows, width};
  if (shard.num_valid > 0) {
    spec.pieces = {
        {.name = name, .shape = {vocab_size, width}, .begin = {shard.first, 0}, .count = {shard.num_valid, width}}};
  }
  spec.sharing = sharing;
  spec.is_owner = is_owner;
  spec.decay = true;
  spec.init = InitKind::normal;
  spec.init_std = 0.02;
  return ctx.registry.declare(std::move(spec));
}

Embedding::Embedding(const LayerContext& ctx, const ModelConfig& model, Parameter& token_weight)
    : shard_(vocabulary_shard(model.vocab_size, ctx.tensor.rank(), ctx.tensor.num_ranks())),
      tokens_(&token_weight),
      dropout_key_(philox_key(ctx.seed, "embed.dropout")) {
  ParameterSpec spec;
  spec.name = "pos_embed.weight";
  spec.shape = {model.max_position_embeddings, model.hidden_size};
  spec.pieces = {{.name = spec.name,
                  .shape = spec.shape,
                  .begin = {0, 0},
                  .count = {model.max_position_embeddings, model.hidden_size}}};
  spec.sharing = Sharing::replicated;
  spec.is_owner = ctx.tensor.rank() == 0;
  spec.decay = true;
  spec.init = InitKind::normal;
  spec.init_std = 0.01;  // GPT-2
  positions_ = &ctx.registry.declare(std::move(spec));
}

Tensor Embedding::forward(const LayerContext& ctx, const MicroBatch& micro_batch) const {
  Tensor partial = ctx.make({micro_batch.num_tokens(), tokens_->spec.shape[1]});
  embedding_forward(micro_batch.tokens, tokens_->weight, shard_.first, partial, ctx.stream);
  Tensor x = reduce_rows(ctx, std::move(partial));
  position_dropout_forward(x, positions_->weight, x, layer_dropout(ctx, micro_batch, dropout_key_),
                           token_rows(ctx, micro_batch), ctx.stream);
  return x;
}

void Embedding::backward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor dx) const {
  ParameterRegistry::zero_if_first(*positions_, ctx.stream);
  position_dropout_backward(dx, dx, positions_->gradient, layer_dropout(ctx, micro_batch, dropout_key_),
                            token_rows(ctx, micro_batch), ctx.stream);
  ctx.registry.accumulated(*positions_);
  const Rows all = gather_rows(ctx, dx);
  ParameterRegistry::zero_if_first(*tokens_, ctx.stream);
  embedding_backward(micro_batch.tokens, all.view, shard_.first, tokens_->gradient, ctx.stream);
  ctx.registry.accumulated(*tokens_);
}

LmHead::LmHead(const LayerContext& ctx, const ModelConfig& model, Parameter& weight, std::int64_t chunk_tokens)
    : shard_(vocabulary_shard(model.vocab_size, ctx.tensor.rank(), ctx.tensor.num_ranks())),
      weight_(&weight),
      norm_(ctx, "final_norm", model.hidden_size),
      chunk_tokens_(chunk_tokens) {}

void LmHead::loss_of_rows(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView rows,
                          ConstTensorView targets, TensorView drows, double beta) const {
  const Tensor logits = ctx.make({rows.dim(0), shard_.num_rows});
  gemm(rows, false, weight_->weight, true, logits, 1, 0, ctx.stream);
  softmax_loss(ctx, micro_batch, logits, targets);
  if (!micro_batch.training) return;
  gemm(logits, false, weight_->weight, false, drows, 1, 0, ctx.stream);
  gemm(logits, true, rows, false, weight_->gradient, 1, beta, ctx.stream);
}

void LmHead::softmax_loss(const LayerContext& ctx, const MicroBatch& micro_batch, TensorView logits,
                          ConstTensorView targets) const {
  const std::int64_t num_rows = logits.dim(0);
  if (ctx.tensor.num_ranks() == 1) {
    const Tensor row_losses = ctx.make_statistic({num_rows});
    cross_entropy_fused(logits, shard_.num_valid, targets, micro_batch.gradient_scale, micro_batch.training, row_losses,
                        micro_batch.loss_sum, ctx.stream);
    return;
  }
  const Tensor row_max = ctx.make_statistic({num_rows});
  const Tensor sums = ctx.make_statistic({2, num_rows});
  cross_entropy_max(logits, shard_.num_valid, row_max, ctx.stream);
  ctx.tensor.all_reduce(row_max, ReduceOp::max, ctx.stream);
  cross_entropy_sums(logits, shard_.num_valid, shard_.first, targets, row_max, sums, ctx.stream);
  ctx.tensor.all_reduce(sums, ReduceOp::sum, ctx.stream);
  cross_entropy_loss(sums, targets, micro_batch.loss_sum, ctx.stream);
  if (!micro_batch.training) return;
  cross_entropy_backward(logits, shard_.num_valid, shard_.first, targets, row_max, sums, micro_batch.gradient_scale,
                         ctx.stream);
}

Tensor LmHead::forward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor x) const {
  LayerNorm::Saved saved;
  norm_.forward(ctx, x, saved);
  const std::int64_t num_tokens = micro_batch.num_tokens();
  const std::int64_t chunk = chunk_tokens_ > 0 ? std::min(chunk_tokens_, num_tokens) : num_tokens;
  Tensor dnormed = micro_batch.training ? ctx.make({num_tokens, x.view().dim(1)}) : Tensor();
  {
    const Rows normed = gather_rows(ctx, saved.output);
    for (std::int64_t begin = 0; begin < num_tokens; begin += chunk) {
      const std::int64_t count = std::min(chunk, num_tokens - begin);
      loss_of_rows(ctx, micro_batch, normed.view.rows(begin, count), micro_batch.targets.rows(begin, count),
                   micro_batch.training ? dnormed.view().rows(begin, count) : TensorView(),
                   begin == 0 ? ParameterRegistry::beta(*weight_) : 1);
    }
  }
  if (!micro_batch.training) return {};
  ctx.registry.accumulated(*weight_);
  const Tensor dshard = reduce_rows(ctx, std::move(dnormed));
  return norm_.backward(ctx, dshard, x, saved, ConstTensorView(nullptr, ctx.dtype, {0}, ctx.stream.device()));
}

Tensor LmHead::logits_at(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x,
                         std::int64_t position) const {
  LayerNorm::Saved saved;
  norm_.forward(ctx, x, saved);
  const Rows normed = gather_rows(ctx, saved.output);
  const Tensor rows = ctx.make({micro_batch.batch, x.dim(1)});
  for (std::int64_t b = 0; b < micro_batch.batch; ++b) {
    copy(normed.view.rows(b * micro_batch.sequence + position, 1), rows.view().rows(b, 1), ctx.stream);
  }
  Tensor logits = ctx.make({micro_batch.batch, shard_.num_rows});
  gemm(rows, false, weight_->weight, true, logits, 1, 0, ctx.stream);
  return logits;
}

}  // namespace potato
