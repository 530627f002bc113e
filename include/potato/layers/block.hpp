// A pre-norm transformer layer: attention branch, then feed-forward branch; and full activation recompute around it.
#pragma once

#include <string>

#include "potato/layers/branch.hpp"

namespace potato {

class TransformerBlock {
 public:
  // Under Recompute::full only `input` is kept; backward runs forward again (Chen et al., arXiv 1604.06174).
  struct Saved {
    Tensor input;   // [M_local, C]
    Tensor middle;  // [M_local, C], between the branches
    AttentionBranch::Saved attention;
    MlpBranch::Saved mlp;
  };

  // `name` is "layers.3"; num_layers is the model's, for GPT-2's scaled residual initialisation.
  TransformerBlock(const LayerContext& ctx, const std::string& name, const ModelConfig& model);

  // Takes x [M_local, C] over; outside training nothing stays in `saved`. `next`: the first norm of the block behind.
  Tensor forward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor x, Saved& saved,
                 const NextNorm& next) const;
  // dy [M_local, C] -> dx; releases what was saved.
  Tensor backward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor dy, Saved& saved) const;

  const LayerNorm& first_norm() const noexcept { return attention_.norm(); }

 private:
  Tensor run(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x, Saved& saved,
             const NextNorm& next) const;

  AttentionBranch attention_;
  MlpBranch mlp_;
};

}  // namespace potato
