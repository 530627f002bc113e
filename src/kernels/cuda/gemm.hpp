// CUDA back end of kernels/gemm.hpp and kernels/linear.hpp: cuBLASLt, with a plan for each shape that is found once.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato::cuda {

void gemm(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b, TensorView c, double alpha,
          double beta, Stream& stream);

void linear_bias(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView y, Stream& stream);
void linear_bias_gelu(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView pre, TensorView y,
                      Stream& stream);

}  // namespace potato::cuda
