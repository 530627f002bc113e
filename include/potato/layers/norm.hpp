// LayerNorm on this rank's row shard, with what backward needs.
#pragma once

#include <string>

#include "potato/layers/context.hpp"

namespace potato {

class LayerNorm {
 public:
  struct Saved {
    Tensor mean;    // [M_local]
    Tensor rstd;    // [M_local]
    Tensor output;  // [M_local, C]; dropped under recompute
  };

  LayerNorm(const LayerContext& ctx, const std::string& name, std::int64_t width);

  // x [M_local, C]; the output is in `saved`.
  void forward(const LayerContext& ctx, ConstTensorView x, Saved& saved) const;
  // The end of a residual branch and this norm in one pass: x becomes residual + dropout(x + bias), and the norm's
  // output of that is in `saved`. x, residual [M_local, C]; bias [C].
  void forward_after_branch(const LayerContext& ctx, TensorView x, ConstTensorView bias, ConstTensorView residual,
                            const Dropout& dropout, const TokenRows& rows, Saved& saved) const;
  // Makes saved.output again if it was dropped.
  void restore(const LayerContext& ctx, ConstTensorView x, Saved& saved) const;
  // dx = residual_gradient + the norm's gradient of dy; residual_gradient may be empty (shape [0]): none.
  Tensor backward(const LayerContext& ctx, ConstTensorView dy, ConstTensorView x, const Saved& saved,
                  ConstTensorView residual_gradient) const;

  static constexpr double eps = 1e-5;  // GPT-2's

 private:
  Parameter* weight_;  // [C]
  Parameter* bias_;    // [C]
};

}  // namespace potato
