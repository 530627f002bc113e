// Vocabulary-parallel token embedding with learned positions, and the head that shares its weight.
#pragma once

#include <string>

#include "potato/layers/norm.hpp"

namespace potato {

// The vocabulary is padded to a multiple of tensor ranks · 128 in memory only; a rank holds `num_rows` rows, of which
// `num_valid` are tokens (0 on a rank that holds only padding), starting at token `first`.
struct VocabularyShard {
  std::int64_t num_rows = 0;
  std::int64_t num_valid = 0;
  std::int64_t first = 0;
};

VocabularyShard vocabulary_shard(std::int64_t vocab_size, int tensor_rank, int num_tensor_ranks);

// Declares a [V_local, C] weight by the logical name `name` [V, C].
Parameter& declare_vocabulary_weight(const LayerContext& ctx, const std::string& name, std::int64_t vocab_size,
                                     std::int64_t width, Sharing sharing, bool is_owner);

class Embedding {
 public:
  Embedding(const LayerContext& ctx, const ModelConfig& model, Parameter& token_weight);

  // -> x [M_local, C].
  Tensor forward(const LayerContext& ctx, const MicroBatch& micro_batch) const;
  void backward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor dx) const;

 private:
  VocabularyShard shard_;
  Parameter* tokens_;     // [V_local, C]
  Parameter* positions_;  // [T_max, C]
  PhiloxKey dropout_key_;
};

// Final norm, logits and loss. In training forward also runs its own backward at once, since the loss gradient's seed
// is known before the first forward (I3): the logits live only inside forward, and only the input's gradient is kept.
class LmHead {
 public:
  // `weight` [V_local, C]: the token embedding's where tied. chunk_tokens > 0: logits exist for so many rows at a time.
  LmHead(const LayerContext& ctx, const ModelConfig& model, Parameter& weight, std::int64_t chunk_tokens);

  // Adds to micro_batch.loss_sum. -> dx [M_local, C] in training, else an empty tensor. Collective on the tensor axis.
  Tensor forward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor x) const;

  // Logits of one position of each sample, [B, V_local], for sampling. x [M_local, C]. Collective on the tensor axis.
  Tensor logits_at(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x,
                   std::int64_t position) const;

  const VocabularyShard& shard() const noexcept { return shard_; }

 private:
  void loss_of_rows(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView rows,
                    ConstTensorView targets, TensorView drows, double beta) const;
  // Adds to the loss; in training logits [M, V_local] become their gradient.
  void softmax_loss(const LayerContext& ctx, const MicroBatch& micro_batch, TensorView logits,
                    ConstTensorView targets) const;

  VocabularyShard shard_;
  Parameter* weight_;
  LayerNorm norm_;
  std::int64_t chunk_tokens_;
};

}  // namespace potato
