// Token embedding over a shard of the vocabulary, and learned positions.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// y[m] = weight[tokens[m] − first_token] where that row is in this shard, else 0.
//   tokens [M] int32; weight [V_local, C]; y [M, C].
void embedding_forward(ConstTensorView tokens, ConstTensorView weight, std::int64_t first_token, TensorView y,
                       Stream& stream);

// weight_gradient[tokens[m] − first_token] += dy[m], for m ascending (deterministic, the same for any threads).
void embedding_backward(ConstTensorView tokens, ConstTensorView dy, std::int64_t first_token,
                        TensorView weight_gradient, Stream& stream);

// y = dropout(x + positions[position of the row]). x, y [M, C] (may be one memory); positions [T_max, C].
void position_dropout_forward(ConstTensorView x, ConstTensorView positions, TensorView y, Dropout dropout,
                              TokenRows rows, Stream& stream);

// dx = mask · dy / (1 − p); position_gradient[position] += dx, rows ascending. dx may be dy's memory.
void position_dropout_backward(ConstTensorView dy, TensorView dx, TensorView position_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream);

}  // namespace potato
