// The end of a residual branch: bias, dropout and the residual sum in one pass. (With the norm behind it:
// layernorm.hpp.)
//
// dtypes: activations, their gradients and biases are of one dtype (fp32, bf16, fp16; fp64 on the CPU); bias_gradient
// has its compute dtype. All tensors on the stream's device; masks are the same on every device.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// y = residual + dropout(x + bias). x, residual, y [M, C] (y may be x's or residual's memory); bias [C].
// Channel c of row r uses the mask at (sample, position, channel c).
void bias_dropout_add_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual, TensorView y,
                              Dropout dropout, TokenRows rows, Stream& stream);

// dx = mask · dy / (1 − p) (overwrites); bias_gradient[c] += sum over rows of dx before it is rounded, in an order
// that depends on the shape alone (CPU: in row order). dy, dx [M, C] must not overlap (dy goes on as the residual's
// gradient).
void bias_dropout_add_backward(ConstTensorView dy, TensorView dx, TensorView bias_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream);

}  // namespace potato
