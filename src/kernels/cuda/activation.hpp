// CUDA back end of kernels/activation.hpp.
#pragma once

#include "potato/kernels/activation.hpp"

namespace potato::cuda {

void add_bias(TensorView x, ConstTensorView bias, Stream& stream);
void bias_backward(ConstTensorView dy, TensorView bias_gradient, Stream& stream);
void bias_gelu_forward(TensorView x, ConstTensorView bias, TensorView y, Stream& stream);
void gelu_forward(ConstTensorView x, TensorView y, Stream& stream);
void gelu_bias_backward(ConstTensorView dy, ConstTensorView x, TensorView dx, TensorView bias_gradient, Stream& stream);

}  // namespace potato::cuda
