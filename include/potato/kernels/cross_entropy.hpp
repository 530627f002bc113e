// Vocabulary-parallel softmax cross-entropy in three local steps; the caller reduces between them over the tensor axis
// (Shoeybi et al., Megatron-LM, arXiv 1909.08053). The logits are never gathered.
//
// logits [M, V_local] hold num_columns valid columns (the rest is vocabulary padding, which no step reads; it may be 0:
// a shard that holds only padding). targets [M] int32, global ids; −1: not counted. Column j is token first_token + j.
// Logits are fp32, bf16 or fp16 (on the CPU fp64 too); row_max, sums and row_losses have their compute dtype.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// row_max[m] = max over valid columns (lowest finite value of the dtype where there are none). Then: all-reduce max.
void cross_entropy_max(ConstTensorView logits, std::int64_t num_columns, TensorView row_max, Stream& stream);

// sums [2, M]: sums[0][m] = sum over valid columns of exp(logit − row_max[m]); sums[1][m] = the target's logit −
// row_max[m] if the target is in this shard and counted, else 0. Then: all-reduce sum.
void cross_entropy_sums(ConstTensorView logits, std::int64_t num_columns, std::int64_t first_token,
                        ConstTensorView targets, ConstTensorView row_max, TensorView sums, Stream& stream);

// loss_sum [1] fp64 += sum over counted rows of log(sums[0]) − sums[1], added up in fp64 in a fixed order (rows
// ascending on the CPU, blocks of rows on the GPU).
void cross_entropy_loss(ConstTensorView sums, ConstTensorView targets, TensorView loss_sum, Stream& stream);

// In place: logits become gradient_scale · (softmax − one-hot) for counted rows, 0 for others and for padding columns.
void cross_entropy_backward(TensorView logits, std::int64_t num_columns, std::int64_t first_token,
                            ConstTensorView targets, ConstTensorView row_max, ConstTensorView sums,
                            double gradient_scale, Stream& stream);

// All steps at once where the vocabulary is not split; target columns are token ids.
//   row_losses [M] = log-sum-exp − the target's logit for counted rows, 0 for others;
//   loss_sum [1] fp64 += sum of row_losses, added up in fp64 in a fixed order;
//   training: logits become their gradient in place, as cross_entropy_backward has it; else they are left alone.
void cross_entropy_fused(TensorView logits, std::int64_t num_columns, ConstTensorView targets, double gradient_scale,
                         bool training, TensorView row_losses, TensorView loss_sum, Stream& stream);

}  // namespace potato
