// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;      // 0 for tensors without decay
  std::int64_t step = 1;        // 1 for the first update: bias corrections 1 − beta^step
  double max_norm = 0;          // > 0: gradients are scaled by min(1, max_norm / (norm + 1e-6))
  double gradient_scale = 1;    // multiplied into the gradient before anything else; 1 / loss scale
  bool skip_nonfinite = false;  // nothing changes where squared_norm is not finite
};

// One pass over flat memory [N]: weight (the master weight), exp_avg, exp_avg_sq are updated from gradient; all four
// have one compute dtype (fp32; on the CPU fp64 too).
//   g = gradient · gradient_scale · clip; m = b1·m + (1 − b1)·g; v = b2·v + (1 − b2)·g²;
//   w = w·(1 − lr·wd) − lr · (m / (1 − b1^t)) / (sqrt(v / (1 − b2^t)) + eps)
// working_copy [N] bf16 or fp16 receives the new weight, rounded; an empty view (no data, or no elements): none.
// squared_norm [1] fp64 is read on the stream; it is the squared global norm of all gradient · gradient_scale, and only
// read where max_norm > 0 or skip_nonfinite. Elementwise: the same for any split of the memory.
void adamw(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
           TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream);
// The same with all memory on the host, as a task in the order of any device's stream, with the stream's threads. Where
// the update is skipped, working_copy still receives the weight. On `dry` nothing.
void adamw_on_host(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
                   TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream);

}  // namespace potato
