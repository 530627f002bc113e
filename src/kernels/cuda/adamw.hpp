// CUDA back end of kernels/adamw.hpp; see there. The master weight, gradient and moments are fp32.
#pragma once

#include "potato/kernels/adamw.hpp"

namespace potato::cuda {

void adamw(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
           TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream);

}  // namespace potato::cuda
