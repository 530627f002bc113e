// CUDA back end of kernels/cross_entropy.hpp; see there for shapes. Logits are fp32, bf16 or fp16, statistics fp32.
#pragma once

#include "potato/kernels/cross_entropy.hpp"

namespace potato::cuda {

void cross_entropy_max(ConstTensorView logits, std::int64_t num_columns, TensorView row_max, Stream& stream);

void cross_entropy_sums(ConstTensorView logits, std::int64_t num_columns, std::int64_t first_token,
                        ConstTensorView targets, ConstTensorView row_max, TensorView sums, Stream& stream);

void cross_entropy_loss(ConstTensorView sums, ConstTensorView targets, TensorView loss_sum, Stream& stream);

void cross_entropy_backward(TensorView logits, std::int64_t num_columns, std::int64_t first_token,
                            ConstTensorView targets, ConstTensorView row_max, ConstTensorView sums,
                            double gradient_scale, Stream& stream);

void cross_entropy_fused(TensorView logits, std::int64_t num_columns, ConstTensorView targets, double gradient_scale,
                         bool training, TensorView row_losses, TensorView loss_sum, Stream& stream);

}  // namespace potato::cuda
