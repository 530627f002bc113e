#include "potato/kernels/gemm.hpp"

#include "cpu/gemm.hpp"
#include "run_on.hpp"

namespace potato {

void gemm(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b, TensorView c, double alpha,
          double beta, Stream& stream) {
  for (const ConstTensorView& view : {a, b, ConstTensorView(c)}) {
    check_device(stream, view);
    PC_CHECK(view.shape.num_dims() == 2, "gemm takes matrices, not ", view.shape);
    PC_CHECK(view.dtype == c.dtype, "gemm of ", dtype_name(view.dtype), " into ", dtype_name(c.dtype));
  }
  const std::int64_t m = c.dim(0);
  const std::int64_t n = c.dim(1);
  const std::int64_t k = a.dim(transpose_a ? 0 : 1);
  PC_CHECK(a.dim(transpose_a ? 1 : 0) == m && b.dim(transpose_b ? 1 : 0) == k && b.dim(transpose_b ? 0 : 1) == n,
           "gemm of ", a.shape, transpose_a ? " transposed" : "", " and ", b.shape, transpose_b ? " transposed" : "",
           " into ", c.shape);
  if (m == 0 || n == 0) return;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto bytes = static_cast<double>(a.num_bytes() + b.num_bytes() + (beta == 0 ? 1 : 2) * c.num_bytes());
  dispatch_real(c.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* pa = a.as<T>();
    const T* pb = b.as<T>();
    T* pc = c.as<T>();
    run_on(stream, flops, bytes, [=] {
      cpu::gemm(transpose_a, transpose_b, m, n, k, static_cast<T>(alpha), pa, pb, static_cast<T>(beta), pc);
    });
  });
}

}  // namespace potato
