#include "potato/kernels/gemm.hpp"

#include "back_end.hpp"
#include "cpu/gemm.hpp"
#include "cpu/widen.hpp"
#include "cuda/gemm.hpp"

namespace potato {

void gemm(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b, TensorView c, double alpha,
          double beta, Stream& stream) {
  for (const ConstTensorView& view : {a, b, ConstTensorView(c)}) {
    check_device(stream, view);
    PC_CHECK(view.shape.num_dims() == 2, "gemm takes matrices, not ", view.shape);
  }
  PC_CHECK(a.dtype == b.dtype && (c.dtype == a.dtype || c.dtype == compute_dtype(a.dtype)), "gemm of ",
           dtype_name(a.dtype), " and ", dtype_name(b.dtype), " into ", dtype_name(c.dtype));
  const std::int64_t m = c.dim(0);
  const std::int64_t n = c.dim(1);
  const std::int64_t k = a.dim(transpose_a ? 0 : 1);
  PC_CHECK(a.dim(transpose_a ? 1 : 0) == m && b.dim(transpose_b ? 1 : 0) == k && b.dim(transpose_b ? 0 : 1) == n,
           "gemm of ", a.shape, transpose_a ? " transposed" : "", " and ", b.shape, transpose_b ? " transposed" : "",
           " into ", c.shape);
  if (m == 0 || n == 0) return;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto bytes = static_cast<double>(a.num_bytes() + b.num_bytes() + (beta == 0 ? 1 : 2) * c.num_bytes());
  stream.account(flops, bytes);
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::gemm(a, transpose_a, b, transpose_b, c, alpha, beta, stream);
  }
  dispatch_float(a.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    const auto run = [&](auto* pc) {
      using Stored = std::remove_pointer_t<decltype(pc)>;
      stream.enqueue([=, pa = a.as<S>(), pb = b.as<S>()] {
        const auto multiply = [&](C* wide) {
          cpu::gemm(transpose_a, transpose_b, m, n, k, static_cast<C>(alpha), cpu::In(pa, m * k), cpu::In(pb, k * n),
                    static_cast<C>(beta), wide);
        };
        if (beta == 0) {
          multiply(cpu::Out<Stored>(pc, m * n));
        } else {
          multiply(cpu::InOut<Stored>(pc, m * n));
        }
      });
    };
    if (c.dtype == a.dtype) {
      run(c.as<S>());
    } else {
      run(c.as<C>());
    }
  });
}

}  // namespace potato
