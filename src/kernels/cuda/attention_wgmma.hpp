// Attention by Hopper's warpgroup products: where it can be used, and its entry points.
#pragma once

#include "attention_args.cuh"

namespace potato::cuda {

// Whether this build has code for sm_90a (POTATO_CUDA_CODE).
inline constexpr bool with_sm90a = POTATO_HAS_SM90A != 0;

// On the stream's device, for these tensors: 16 bits, no dropout, heads of a multiple of 8 and up to 128 channels,
// 16-byte aligned memory.
template <typename T>
bool wgmma_attention_fits(const AttentionArgs<T>& args, const Stream& stream);

// Views are checked, wgmma_attention_fits().
template <typename T>
void wgmma_attention_forward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream);
template <typename T>
void wgmma_attention_backward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream);

}  // namespace potato::cuda
