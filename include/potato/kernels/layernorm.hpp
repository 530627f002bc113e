// Layer normalisation over the last dim (Ba, Kiros, Hinton, arXiv 1607.06450), alone and behind a residual branch.
//
// dtypes: x, y, weight, bias and the gradients of activations are of one dtype (fp32, bf16, fp16; fp64 on the CPU);
// mean, rstd and the gradients of weight and bias have its compute dtype. All tensors on the stream's device.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// y = (x − mean) · rstd · weight + bias per row; mean and rstd are kept for backward.
//   x, y [M, C]; weight, bias [C]; mean, rstd [M]. y may be x's memory only if x is not needed again. Variance is the
//   biased one, computed in two passes. Rows are independent of M. Deterministic.
void layernorm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, double eps, TensorView y,
                       TensorView mean, TensorView rstd, Stream& stream);

// y from x and the kept mean and rstd, bitwise what layernorm_forward wrote (for recompute).
void layernorm_apply(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, ConstTensorView mean,
                     ConstTensorView rstd, TensorView y, Stream& stream);

// dx = residual_gradient + the norm's input gradient (overwrites; residual_gradient [M, C] may be dx's memory);
// weight_gradient and bias_gradient [C] are added to: a sum over the rows, in an order that depends on the shape alone
// (CPU: in row order, the same for any number of threads), then one addition.
void layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView weight, ConstTensorView mean,
                        ConstTensorView rstd, ConstTensorView residual_gradient, TensorView dx,
                        TensorView weight_gradient, TensorView bias_gradient, Stream& stream);

// The end of a residual branch and the norm behind it in one pass: sum = residual + dropout(x + bias), rounded to its
// dtype, then y, mean and rstd of layernorm_forward for that rounded sum; bitwise the same as bias_dropout_add_forward
// and layernorm_forward in sequence. x, residual, sum, y [M, C]; bias, weight, norm_bias [C]; mean, rstd [M]. sum may
// be x's or residual's memory; y overlaps nothing.
void bias_dropout_add_layernorm_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                                        TensorView sum, Dropout dropout, TokenRows rows, ConstTensorView weight,
                                        ConstTensorView norm_bias, double eps, TensorView y, TensorView mean,
                                        TensorView rstd, Stream& stream);

}  // namespace potato
