// Which kernels compute attention: a static choice by dtype, shape and device, so that runs repeat.
#include <algorithm>

#include "attention.hpp"
#include "cudnn_attention.hpp"

namespace potato::cuda {

namespace {

bool fits_cudnn(const AttentionShape& shape, DType dtype, const Dropout& dropout) {
  if constexpr (with_cudnn) return cudnn_attention_supports(shape, dtype, dropout);
  return false;
}

// One 16-bit number for each pair of query and key: what cuDNN's ordered backward keeps.
std::int64_t pair_bytes(const AttentionShape& s) {
  const std::int64_t sequence = (s.sequence + 127) / 128 * 128;  // whole tiles
  return s.batch * s.num_heads * sequence * sequence * 2;
}

// The table behind kernels.attention = auto. cuDNN's kernels are the faster ones wherever they apply (H200, bf16, D =
// 64, T = 1024, causal: forward 278 TFLOP/s, ours 225; backward 208 in any order, 196 ordered, ours 194). But the
// scratch of its ordered backward grows with the square of the sequence; ours repeats bitwise without.
bool automatic_is_cudnn(const AttentionShape& shape, AttentionPass pass) {
  constexpr std::int64_t most_pair_bytes = std::int64_t{2} << 30;
  return pass == AttentionPass::forward || !shape.deterministic || pair_bytes(shape) <= most_pair_bytes;
}

bool uses_cudnn(const AttentionShape& shape, DType dtype, const Dropout& dropout, AttentionPass pass) {
  if (shape.kernel == AttentionKernel::own) return false;
  const bool fits = fits_cudnn(shape, dtype, dropout);
  if (shape.kernel == AttentionKernel::automatic) return fits && automatic_is_cudnn(shape, pass);
  PC_CHECK(fits, "kernels.attention = cudnn: cuDNN does not compute attention of ", dtype_name(dtype), ", head width ",
           shape.head_dim, ", sequence ", shape.sequence, ", dropout ", dropout.p);
  return true;
}

}  // namespace

void attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape, Dropout dropout,
                       TokenRows rows, Stream& stream) {
  if constexpr (with_cudnn) {
    if (uses_cudnn(shape, qkv.dtype, dropout, AttentionPass::forward)) {
      return cudnn_attention_forward(qkv, y, lse, shape, stream);
    }
  }
  own_attention_forward(qkv, y, lse, shape, dropout, rows, stream);
}

void attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                        TensorView dqkv, TensorView scratch, const AttentionShape& shape, Dropout dropout,
                        TokenRows rows, Stream& stream) {
  if constexpr (with_cudnn) {
    if (uses_cudnn(shape, qkv.dtype, dropout, AttentionPass::backward)) {
      return cudnn_attention_backward(dy, qkv, y, lse, dqkv, shape, shape.deterministic, stream);
    }
  }
  own_attention_backward(dy, qkv, y, lse, dqkv, scratch, shape, dropout, rows, stream);
}

std::int64_t attention_workspace_bytes(const AttentionShape& s, DType dtype, const Dropout& dropout) {
  if (!uses_cudnn(s, dtype, dropout, AttentionPass::backward)) return std::int64_t{1} << 20;
  const std::int64_t query_elems = s.batch * s.sequence * s.num_heads * s.head_dim;
  const std::int64_t dq_bytes = query_elems * 4;
  // Gradients of keys and values by query head, before they are summed over a group.
  const std::int64_t group_bytes = s.num_kv_heads < s.num_heads ? 2 * query_elems * 2 : 0;
  const std::int64_t known_bytes = (s.deterministic ? std::max(dq_bytes, pair_bytes(s)) : dq_bytes) + group_bytes;
  return known_bytes + known_bytes / 4;  // what it keeps besides differs between versions
}

}  // namespace potato::cuda
