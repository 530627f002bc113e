// Token embedding over a shard of the vocabulary, and learned positions.
//
// Activations, their gradients and weights have one dtype (fp32, bf16, fp16; on the CPU fp64 too); weight_gradient and
// position_gradient have its compute dtype.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// y[m] = weight[tokens[m] − first_token] where that row is in this shard, else 0.
//   tokens [M] int32; weight [V_local, C]; y [M, C].
void embedding_forward(ConstTensorView tokens, ConstTensorView weight, std::int64_t first_token, TensorView y,
                       Stream& stream);

// weight_gradient[tokens[m] − first_token] += dy[m], for m ascending (deterministic, the same for any threads; on the
// GPU the rows of a token that has more than 64 are summed by 64s, and these sums added in order).
//   tokens [M] int32; dy [M, C]; weight_gradient [V_local, C].
void embedding_backward(ConstTensorView tokens, ConstTensorView dy, std::int64_t first_token,
                        TensorView weight_gradient, Stream& stream);

// y = dropout(x + positions[position of the row]). x, y [M, C] (may be one memory); positions [T_max, C].
void position_dropout_forward(ConstTensorView x, ConstTensorView positions, TensorView y, Dropout dropout,
                              TokenRows rows, Stream& stream);

// dx = mask · dy / (1 − p); position_gradient[position] += dx (before it is rounded), rows ascending. dx may be dy's
// memory. dy, dx [M, C]; position_gradient [T_max, C].
void position_dropout_backward(ConstTensorView dy, TensorView dx, TensorView position_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream);

}  // namespace potato
