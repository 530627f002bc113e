// Scaled dot-product attention, blocked so that [T, T] never exists for more than one head and one block of queries a
// thread (Dao et al., FlashAttention, arXiv 2205.14135; Rabe and Staats, arXiv 2112.05682).
//
// Shape letters: B batch, T sequence, H query heads here, K key/value heads here (H % K == 0), D width of a head.
#pragma once

#include "potato/config/config.hpp"
#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

struct AttentionShape {
  std::int64_t batch = 0;         // B
  std::int64_t sequence = 0;      // T
  std::int64_t num_heads = 0;     // H, of this rank
  std::int64_t num_kv_heads = 0;  // K, of this rank
  std::int64_t head_dim = 0;      // D
  bool causal = true;
  double scale = 0;                                     // of q·k, usually 1 / sqrt(D)
  std::int64_t first_head = 0;                          // global number of this rank's first head, for dropout
  AttentionKernel kernel = AttentionKernel::automatic;  // of a GPU; automatic: by a static table
  bool deterministic = true;                            // backward repeats bitwise; false may be faster on a GPU
};

// qkv [B·T, (H + 2K)·D]: per row the queries of all heads, then the keys, then the values.
// y [B·T, H·D]; lse [B, H, T]: log of the sum of exponentials of the scaled scores, kept for backward. lse has the
// compute dtype (fp32 for 16-bit qkv), the others qkv's.
// Dropout on the probabilities: mask at (sample, query position, channel = global head · T + key position).
// A head's result depends on nothing but its own rows: the same on any grid and for any number of threads.
void attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape, Dropout dropout,
                       TokenRows rows, Stream& stream);

// dqkv [B·T, (H + 2K)·D] is overwritten. y and lse are forward's; dy [B·T, H·D].
// scratch [B, H, T], of lse's dtype, holds the row sums of dy · y. On CUDA D <= 256.
void attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                        TensorView dqkv, TensorView scratch, const AttentionShape& shape, Dropout dropout,
                        TokenRows rows, Stream& stream);

// Bytes of stream.workspace() that forward and backward may ask for on a GPU; 0 in builds without CUDA. Needs no
// device.
std::int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const Dropout& dropout);

}  // namespace potato
