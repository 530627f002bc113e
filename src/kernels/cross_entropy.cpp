// Shape letters: M rows, V_local columns of this shard.
#include "potato/kernels/cross_entropy.hpp"

#include "cpu/cross_entropy.hpp"
#include "run_on.hpp"

namespace potato {

namespace {

void check_logits(const ConstTensorView& logits, std::int64_t num_columns, const Stream& stream) {
  check_device(stream, logits);
  PC_CHECK(logits.shape.num_dims() == 2, "logits have shape ", logits.shape);
  PC_CHECK(num_columns >= 0 && num_columns <= logits.dim(1), num_columns, " valid columns of ", logits.shape);
}

// A companion of the logits, of as many elements and the given dtype.
void check_companion(const char* name, const ConstTensorView& view, std::int64_t num_elems, DType dtype,
                     const Stream& stream) {
  check_device(stream, view);
  PC_CHECK(view.num_elems() == num_elems && view.dtype == dtype, name, " is ", dtype_name(view.dtype), " ", view.shape,
           ", expected ", num_elems, " elements of ", dtype_name(dtype));
}

}  // namespace

void cross_entropy_max(ConstTensorView logits, std::int64_t num_columns, TensorView row_max, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("row_max", row_max, m, logits.dtype, stream);
  if (m == 0) return;
  const double elems = static_cast<double>(m) * static_cast<double>(num_columns);
  const double bytes =
      elems * static_cast<double>(dtype_bytes(logits.dtype)) + static_cast<double>(row_max.num_bytes());
  dispatch_real(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const cpu::LogitRows<T> rows{logits.as<T>(), m, logits.dim(1), num_columns, 0};
    T* out = row_max.as<T>();
    run_on(stream, 0, bytes, [=] { cpu::cross_entropy_max(rows, out); });
  });
}

void cross_entropy_sums(ConstTensorView logits, std::int64_t num_columns, std::int64_t first_token,
                        ConstTensorView targets, ConstTensorView row_max, TensorView sums, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("row_max", row_max, m, logits.dtype, stream);
  check_companion("sums", sums, 2 * m, logits.dtype, stream);
  if (m == 0) return;
  const double elems = static_cast<double>(m) * static_cast<double>(num_columns);
  const double bytes = elems * static_cast<double>(dtype_bytes(logits.dtype)) +
                       static_cast<double>(targets.num_bytes() + row_max.num_bytes() + sums.num_bytes());
  dispatch_real(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const cpu::LogitRows<T> rows{logits.as<T>(), m, logits.dim(1), num_columns, first_token};
    const std::int32_t* ids = targets.as<std::int32_t>();
    const T* maxima = row_max.as<T>();
    T* out = sums.as<T>();
    run_on(stream, 2 * elems, bytes, [=] { cpu::cross_entropy_sums(rows, ids, maxima, out); });
  });
}

void cross_entropy_loss(ConstTensorView sums, ConstTensorView targets, TensorView loss_sum, Stream& stream) {
  const std::int64_t m = targets.num_elems();
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("sums", sums, 2 * m, sums.dtype, stream);
  check_companion("loss_sum", loss_sum, 1, DType::f64, stream);
  if (m == 0) return;
  const auto bytes = static_cast<double>(sums.num_bytes() + targets.num_bytes() + 2 * loss_sum.num_bytes());
  dispatch_real(sums.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* in = sums.as<T>();
    const std::int32_t* ids = targets.as<std::int32_t>();
    double* out = loss_sum.as<double>();
    run_on(stream, 2 * static_cast<double>(m), bytes, [=] { cpu::cross_entropy_loss(m, in, ids, out); });
  });
}

void cross_entropy_backward(TensorView logits, std::int64_t num_columns, std::int64_t first_token,
                            ConstTensorView targets, ConstTensorView row_max, ConstTensorView sums,
                            double gradient_scale, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("row_max", row_max, m, logits.dtype, stream);
  check_companion("sums", sums, 2 * m, logits.dtype, stream);
  if (logits.num_elems() == 0) return;
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(num_columns);
  const auto bytes = static_cast<double>(2 * logits.num_bytes() + targets.num_bytes() + row_max.num_bytes()) +
                     0.5 * static_cast<double>(sums.num_bytes());
  dispatch_real(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* gradient = logits.as<T>();
    const cpu::LogitRows<T> rows{gradient, m, logits.dim(1), num_columns, first_token};
    const std::int32_t* ids = targets.as<std::int32_t>();
    const T* maxima = row_max.as<T>();
    const T* totals = sums.as<T>();
    run_on(stream, flops, bytes,
           [=] { cpu::cross_entropy_backward(rows, ids, maxima, totals, gradient_scale, gradient); });
  });
}

}  // namespace potato
