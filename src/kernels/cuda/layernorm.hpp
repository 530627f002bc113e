// CUDA back end of kernels/layernorm.hpp.
#pragma once

#include "potato/kernels/layernorm.hpp"

namespace potato::cuda {

void layernorm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, double eps, TensorView y,
                       TensorView mean, TensorView rstd, Stream& stream);
void layernorm_apply(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, ConstTensorView mean,
                     ConstTensorView rstd, TensorView y, Stream& stream);
void layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView weight, ConstTensorView mean,
                        ConstTensorView rstd, ConstTensorView residual_gradient, TensorView dx,
                        TensorView weight_gradient, TensorView bias_gradient, Stream& stream);
void bias_dropout_add_layernorm_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                                        TensorView sum, Dropout dropout, TokenRows rows, ConstTensorView weight,
                                        ConstTensorView norm_bias, double eps, TensorView y, TensorView mean,
                                        TensorView rstd, Stream& stream);

}  // namespace potato::cuda
