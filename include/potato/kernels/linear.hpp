// Products of linear layers, fused with what follows them at once. Weights are [out, in].
//
// S: the dtype of activations and weights. Each is what the product and the named kernels give one after the other, up
// to the rounding of what fusion leaves in registers.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// y = x · Wᵀ + bias. x [M, K], weight [N, K], bias [N], y [M, N]; all S.
void linear_bias(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView y, Stream& stream);

// pre = x · Wᵀ + bias; y = gelu(pre). x [M, K], weight [N, K], bias [N], pre, y [M, N]; all S.
void linear_bias_gelu(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView pre, TensorView y,
                      Stream& stream);

// dpre = (dy · W) ∘ gelu'(pre), and bias_gradient [F] (compute dtype) += sum over rows of dpre, as bias_backward does.
// dy [M, N], weight [N, F], pre, dpre [M, F]; all S.
void linear_gelu_backward(ConstTensorView dy, ConstTensorView weight, ConstTensorView pre, TensorView dpre,
                          TensorView bias_gradient, Stream& stream);

}  // namespace potato
