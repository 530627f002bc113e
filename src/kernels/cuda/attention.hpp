// CUDA back end of kernels/attention.hpp; see there.
#pragma once

#include "potato/kernels/attention.hpp"

namespace potato::cuda {

void attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape, Dropout dropout,
                       TokenRows rows, Stream& stream);

void attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                        TensorView dqkv, TensorView scratch, const AttentionShape& shape, Dropout dropout,
                        TokenRows rows, Stream& stream);

std::int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const Dropout& dropout);

// Our own kernels, whatever else the two above may choose: any dtype, T and D <= 256.
void own_attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape,
                           Dropout dropout, TokenRows rows, Stream& stream);

void own_attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                            TensorView dqkv, TensorView scratch, const AttentionShape& shape, Dropout dropout,
                            TokenRows rows, Stream& stream);

}  // namespace potato::cuda
