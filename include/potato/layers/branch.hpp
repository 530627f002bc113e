// The two residual branches of a pre-norm transformer layer: y = x + dropout(f(norm(x)) + bias). The end of a branch
// and the norm that opens the next one are one pass over memory.
#pragma once

#include <string>

#include "potato/kernels/attention.hpp"
#include "potato/layers/linear.hpp"
#include "potato/layers/norm.hpp"
#include "potato/layers/parallel.hpp"

namespace potato {

// The norm that follows a branch, if any, and where its results belong.
struct NextNorm {
  const LayerNorm* norm = nullptr;
  LayerNorm::Saved* saved = nullptr;
};

// The shared end of a branch: the reduction over the tensor axis, bias, dropout and the residual sum.
class BranchEnd {
 public:
  BranchEnd(Parameter& bias, PhiloxKey dropout_key) : bias_(&bias), dropout_key_(dropout_key) {}

  // y [M_local, C] = x + dropout(reduced partial + bias), and `next` of y; partial [M, C].
  Tensor forward(const LayerContext& ctx, const MicroBatch& micro_batch, Tensor partial, ConstTensorView x,
                 const NextNorm& next) const;
  // The gradient of the partial sum, all M rows; dy [M_local, C] must live as long as the result.
  Rows backward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView dy) const;

 private:
  Parameter* bias_;
  PhiloxKey dropout_key_;
};

// Multi-head causal self-attention; heads are split over the tensor axis.
class AttentionBranch {
 public:
  struct Saved {
    LayerNorm::Saved norm;
    Tensor qkv;  // [M, 3·C_local]
    Tensor mix;  // [M, C_local], attention's output
    Tensor lse;  // [B, H_local, T]
  };

  AttentionBranch(const LayerContext& ctx, const std::string& name, const ModelConfig& model, double init_std,
                  double residual_init_std);

  // x [M_local, C] -> y [M_local, C]. The branch's own norm is computed unless the branch before left it in `saved`.
  Tensor forward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x, Saved& saved,
                 const NextNorm& next) const;
  // dy, x [M_local, C] -> dx; releases what was saved.
  Tensor backward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView dy, ConstTensorView x,
                  Saved& saved) const;
  const LayerNorm& norm() const noexcept { return norm_; }

 private:
  AttentionShape shape_of(const LayerContext& ctx, const MicroBatch& micro_batch) const;

  std::int64_t num_heads_local_;
  std::int64_t head_dim_;
  LayerNorm norm_;
  ColumnLinear qkv_;
  RowLinear out_;
  BranchEnd end_;
  PhiloxKey attention_key_;
};

// Two linear layers with GELU between; the feed-forward width is split over the tensor axis.
class MlpBranch {
 public:
  struct Saved {
    LayerNorm::Saved norm;
    Tensor pre;  // [M, F_local], before GELU
    Tensor act;  // [M, F_local], after it; dropped under recompute
  };

  MlpBranch(const LayerContext& ctx, const std::string& name, const ModelConfig& model, double init_std,
            double residual_init_std);

  Tensor forward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView x, Saved& saved,
                 const NextNorm& next) const;
  Tensor backward(const LayerContext& ctx, const MicroBatch& micro_batch, ConstTensorView dy, ConstTensorView x,
                  Saved& saved) const;
  const LayerNorm& norm() const noexcept { return norm_; }

 private:
  LayerNorm norm_;
  ColumnLinear up_;
  RowLinear down_;
  BranchEnd end_;
};

}  // namespace potato
