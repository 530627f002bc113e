// CUDA back end of kernels/embedding.hpp; see there for shapes. Tensors are fp32, bf16 or fp16, gradients fp32.
#pragma once

#include "potato/kernels/embedding.hpp"

namespace potato::cuda {

void embedding_forward(ConstTensorView tokens, ConstTensorView weight, std::int64_t first_token, TensorView y,
                       Stream& stream);

void embedding_backward(ConstTensorView tokens, ConstTensorView dy, std::int64_t first_token,
                        TensorView weight_gradient, Stream& stream);

void position_dropout_forward(ConstTensorView x, ConstTensorView positions, TensorView y, Dropout dropout,
                              TokenRows rows, Stream& stream);

void position_dropout_backward(ConstTensorView dy, TensorView dx, TensorView position_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream);

}  // namespace potato::cuda
