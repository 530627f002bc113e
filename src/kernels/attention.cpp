// Shape letters: see the header.
#include "potato/kernels/attention.hpp"

#include "back_end.hpp"
#include "cpu/attention.hpp"
#include "cpu/widen.hpp"
#include "cuda/attention.hpp"

namespace potato {

namespace {

void check_tensor(const char* name, const ConstTensorView& view, Shape expected, DType dtype, const Stream& stream) {
  check_device(stream, view);
  PC_CHECK(view.shape == expected && view.dtype == dtype, name, " is ", dtype_name(view.dtype), " ", view.shape,
           ", expected ", dtype_name(dtype), " ", expected);
}

cpu::AttentionTask make_task(const AttentionShape& s, const Dropout& dropout, const TokenRows& rows) {
  PC_CHECK(s.batch >= 0 && s.sequence >= 0 && s.num_heads >= 0 && s.head_dim >= 0 && s.first_head >= 0);
  PC_CHECK(s.num_heads == 0 || (s.num_kv_heads > 0 && s.num_heads % s.num_kv_heads == 0), s.num_heads,
           " query heads on ", s.num_kv_heads, " key/value heads");
  if (dropout.p > 0 && s.batch * s.sequence * s.num_heads > 0) {
    PC_CHECK(dropout.p < 1, "dropout ", dropout.p);
    PC_CHECK(rows.first_row == 0 && rows.sequence_length == s.sequence, "attention needs whole samples: first row ",
             rows.first_row, ", sequence length ", rows.sequence_length, " and ", s.sequence);
    check_philox_ranges(rows.first_sample + static_cast<std::uint64_t>(s.batch - 1),
                        static_cast<std::uint64_t>(s.sequence - 1),
                        static_cast<std::uint64_t>((s.first_head + s.num_heads) * s.sequence - 1));
  }
  return {s, dropout, rows.first_sample};
}

Shape qkv_shape(const AttentionShape& s) {
  return {s.batch * s.sequence, (s.num_heads + 2 * s.num_kv_heads) * s.head_dim};
}
Shape output_shape(const AttentionShape& s) { return {s.batch * s.sequence, s.num_heads * s.head_dim}; }
Shape row_shape(const AttentionShape& s) { return {s.batch, s.num_heads, s.sequence}; }

// Of `num_products` products [T, D] x [D, T], of which only the unmasked part counts.
double product_flops(const AttentionShape& s, int num_products) {
  const auto t = static_cast<double>(s.sequence);
  const double pairs = s.causal ? t * (t + 1) / 2 : t * t;
  return 2.0 * num_products * pairs * static_cast<double>(s.batch * s.num_heads * s.head_dim);
}

}  // namespace

void attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape, Dropout dropout,
                       TokenRows rows, Stream& stream) {
  const cpu::AttentionTask task = make_task(shape, dropout, rows);
  check_tensor("qkv", qkv, qkv_shape(shape), qkv.dtype, stream);
  check_tensor("y", y, output_shape(shape), qkv.dtype, stream);
  check_tensor("lse", lse, row_shape(shape), compute_dtype(qkv.dtype), stream);
  if (y.num_elems() == 0) return;
  const auto bytes = static_cast<double>(qkv.num_bytes() + y.num_bytes() + lse.num_bytes());
  stream.account(product_flops(shape, 2), bytes);
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::attention_forward(qkv, y, lse, shape, dropout, rows, stream);
  }
  dispatch_float(qkv.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([task, in = qkv.as<S>(), in_elems = qkv.num_elems(), out = y.as<S>(), out_elems = y.num_elems(),
                    out_lse = lse.as<C>()] {
      cpu::attention_forward<C>(task, cpu::In(in, in_elems), cpu::Out(out, out_elems), out_lse);
    });
  });
}

void attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                        TensorView dqkv, TensorView scratch, const AttentionShape& shape, Dropout dropout,
                        TokenRows rows, Stream& stream) {
  const cpu::AttentionTask task = make_task(shape, dropout, rows);
  check_tensor("dy", dy, output_shape(shape), qkv.dtype, stream);
  check_tensor("qkv", qkv, qkv_shape(shape), qkv.dtype, stream);
  check_tensor("y", y, output_shape(shape), qkv.dtype, stream);
  check_tensor("lse", lse, row_shape(shape), compute_dtype(qkv.dtype), stream);
  check_tensor("dqkv", dqkv, qkv_shape(shape), qkv.dtype, stream);
  check_tensor("scratch", scratch, row_shape(shape), compute_dtype(qkv.dtype), stream);
  if (dy.num_elems() == 0) return;
  const auto bytes = static_cast<double>(dy.num_bytes() + qkv.num_bytes() + y.num_bytes() + lse.num_bytes() +
                                         dqkv.num_bytes() + scratch.num_bytes());
  stream.account(product_flops(shape, 5), bytes);
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::attention_backward(dy, qkv, y, lse, dqkv, scratch, shape, dropout, rows, stream);
    }
  }
  dispatch_float(qkv.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([task, grad = dy.as<S>(), in = qkv.as<S>(), out = y.as<S>(), in_lse = lse.as<C>(),
                    grad_in = dqkv.as<S>(), sums = scratch.as<C>(), in_elems = qkv.num_elems(),
                    out_elems = y.num_elems()] {
      cpu::attention_backward<C>(task, cpu::In(grad, out_elems), cpu::In(in, in_elems), cpu::In(out, out_elems), in_lse,
                                 cpu::Out(grad_in, in_elems), sums);
    });
  });
}

std::int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const Dropout& dropout) {
  if constexpr (with_cuda) return cuda::attention_workspace_bytes(shape, dtype, dropout);
  return 0;
}

}  // namespace potato
