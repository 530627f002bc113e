// CUDA back end of kernels/dropout.hpp, and for .cu files the mask of one pack of channels.
#pragma once

#include "potato/kernels/dropout.hpp"

namespace potato::cuda {

void bias_dropout_add_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual, TensorView y,
                              Dropout dropout, TokenRows rows, Stream& stream);
void bias_dropout_add_backward(ConstTensorView dy, TensorView dx, TensorView bias_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream);

}  // namespace potato::cuda

#ifdef __CUDACC__

#include "common.cuh"

namespace potato::cuda {

// The logical token of a row.
struct Token {
  std::uint64_t sample;
  std::int64_t position;

  // `num_rows` further on.
  __device__ __forceinline__ void advance(const TokenRows& rows, int num_rows) {
    position += num_rows;
    while (position >= rows.sequence_length) {
      position -= rows.sequence_length;
      ++sample;
    }
  }
};

__device__ __forceinline__ Token token_of(const TokenRows& rows, std::int64_t row) {
  const std::int64_t token = rows.first_row + row;
  if (((token | rows.sequence_length) >> 32) == 0) {  // a division of 32 bits is several times as fast
    const auto index = static_cast<unsigned>(token), length = static_cast<unsigned>(rows.sequence_length);
    return {rows.first_sample + index / length, index % length};
  }
  return {rows.first_sample + static_cast<std::uint64_t>(token / rows.sequence_length), token % rows.sequence_length};
}

// mask[i] = scale where `channel` + i of the token is kept, else 0, for i < N; channel is a multiple of N. Only for
// dropout that is on.
template <int N>
__device__ __forceinline__ void dropout_mask(const DeviceDropout& dropout, const Token& token, std::int64_t channel,
                                             float (&mask)[N]) {
  const auto keep = [&](unsigned bits) { return bits >= dropout.threshold ? dropout.scale : 0.0F; };
  const auto position = static_cast<unsigned>(token.position);
  const auto first = static_cast<std::uint64_t>(channel);
  if constexpr (N == 1) {
    const uint4 bits = dropout_bits(dropout.key, token.sample, position, first);
    const unsigned lane = static_cast<unsigned>(channel) & 3U;
    mask[0] = keep(lane < 2 ? (lane == 0 ? bits.x : bits.y) : (lane == 2 ? bits.z : bits.w));
  } else {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const uint4 bits = dropout_bits(dropout.key, token.sample, position, first + static_cast<unsigned>(i));
      mask[i] = keep(bits.x);
      mask[i + 1] = keep(bits.y);
      mask[i + 2] = keep(bits.z);
      mask[i + 3] = keep(bits.w);
    }
  }
}

// residual + mask · (x + bias), spelled out so that every kernel rounds alike.
__device__ __forceinline__ float branch_sum(float x, float bias, float residual, float mask) {
  return __fmaf_rn(__fadd_rn(x, bias), mask, residual);
}

}  // namespace potato::cuda

#endif
