// Layer normalisation over the last dim (Ba, Kiros, Hinton, arXiv 1607.06450).
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// y = (x − mean) · rstd · weight + bias per row; mean and rstd are kept for backward.
//   x, y [M, C]; weight, bias [C]; mean, rstd [M]; all of one dtype (fp32, fp64). y may be x's memory only if x is not
//   needed again. Variance is the biased one, computed in two passes. Rows are independent of M. Deterministic.
void layernorm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, double eps, TensorView y,
                       TensorView mean, TensorView rstd, Stream& stream);

// y from x and the kept mean and rstd, bitwise what layernorm_forward wrote (for recompute).
void layernorm_apply(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, ConstTensorView mean,
                     ConstTensorView rstd, TensorView y, Stream& stream);

// dx = residual_gradient + the norm's input gradient (overwrites; residual_gradient [M, C] may be dx's memory);
// weight_gradient and bias_gradient [C] are added to, in row order, the same for any number of threads.
void layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView weight, ConstTensorView mean,
                        ConstTensorView rstd, ConstTensorView residual_gradient, TensorView dx,
                        TensorView weight_gradient, TensorView bias_gradient, Stream& stream);

}  // namespace potato
