// Shape letters: M rows, V_local columns of this shard.
#include "potato/kernels/cross_entropy.hpp"

#include "back_end.hpp"
#include "cpu/cross_entropy.hpp"
#include "cpu/widen.hpp"
#include "cuda/cross_entropy.hpp"

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

// Bytes of the valid columns.
double valid_bytes(const ConstTensorView& logits, std::int64_t num_columns) {
  return static_cast<double>(logits.dim(0)) * static_cast<double>(num_columns) *
         static_cast<double>(dtype_bytes(logits.dtype));
}

}  // namespace

void cross_entropy_max(ConstTensorView logits, std::int64_t num_columns, TensorView row_max, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("row_max", row_max, m, compute_dtype(logits.dtype), stream);
  if (m == 0) return;
  stream.account(0, valid_bytes(logits, num_columns) + static_cast<double>(row_max.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::cross_entropy_max(logits, num_columns, row_max, stream);
  }
  dispatch_float(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x = logits.as<S>(), m, row_elems = logits.dim(1), num_columns, out = row_max.as<C>()] {
      const cpu::In in(x, m * row_elems);
      cpu::cross_entropy_max(cpu::LogitRows<C>{in, m, row_elems, num_columns, 0}, out);
    });
  });
}

void cross_entropy_sums(ConstTensorView logits, std::int64_t num_columns, std::int64_t first_token,
                        ConstTensorView targets, ConstTensorView row_max, TensorView sums, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("row_max", row_max, m, compute_dtype(logits.dtype), stream);
  check_companion("sums", sums, 2 * m, compute_dtype(logits.dtype), stream);
  if (m == 0) return;
  stream.account(2 * static_cast<double>(m) * static_cast<double>(num_columns),
                 valid_bytes(logits, num_columns) +
                     static_cast<double>(targets.num_bytes() + row_max.num_bytes() + sums.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::cross_entropy_sums(logits, num_columns, first_token, targets, row_max, sums, stream);
    }
  }
  dispatch_float(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x = logits.as<S>(), m, row_elems = logits.dim(1), num_columns, first_token,
                    ids = targets.as<std::int32_t>(), maxima = row_max.as<C>(), out = sums.as<C>()] {
      const cpu::In in(x, m * row_elems);
      cpu::cross_entropy_sums(cpu::LogitRows<C>{in, m, row_elems, num_columns, first_token}, ids, maxima, out);
    });
  });
}

void cross_entropy_loss(ConstTensorView sums, ConstTensorView targets, TensorView loss_sum, Stream& stream) {
  const std::int64_t m = targets.num_elems();
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("sums", sums, 2 * m, compute_dtype(sums.dtype), stream);
  check_companion("loss_sum", loss_sum, 1, DType::f64, stream);
  if (m == 0) return;
  stream.account(2 * static_cast<double>(m),
                 static_cast<double>(sums.num_bytes() + targets.num_bytes() + 2 * loss_sum.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::cross_entropy_loss(sums, targets, loss_sum, stream);
  }
  dispatch_real(sums.dtype, [&](auto zero) {
    using C = decltype(zero);
    stream.enqueue([m, in = sums.as<C>(), ids = targets.as<std::int32_t>(), out = loss_sum.as<double>()] {
      cpu::cross_entropy_loss(m, in, ids, out);
    });
  });
}

void cross_entropy_backward(TensorView logits, std::int64_t num_columns, std::int64_t first_token,
                            ConstTensorView targets, ConstTensorView row_max, ConstTensorView sums,
                            double gradient_scale, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("row_max", row_max, m, compute_dtype(logits.dtype), stream);
  check_companion("sums", sums, 2 * m, compute_dtype(logits.dtype), stream);
  if (logits.num_elems() == 0) return;
  stream.account(2 * static_cast<double>(m) * static_cast<double>(num_columns),
                 static_cast<double>(2 * logits.num_bytes() + targets.num_bytes() + row_max.num_bytes()) +
                     0.5 * static_cast<double>(sums.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::cross_entropy_backward(logits, num_columns, first_token, targets, row_max, sums, gradient_scale,
                                          stream);
    }
  }
  dispatch_float(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x = logits.as<S>(), m, row_elems = logits.dim(1), num_columns, first_token,
                    ids = targets.as<std::int32_t>(), maxima = row_max.as<C>(), totals = sums.as<C>(), gradient_scale] {
      const cpu::InOut in_place(x, m * row_elems);
      C* gradient = in_place;
      cpu::cross_entropy_backward(cpu::LogitRows<C>{gradient, m, row_elems, num_columns, first_token}, ids, maxima,
                                  totals, gradient_scale, gradient);
    });
  });
}

void cross_entropy_fused(TensorView logits, std::int64_t num_columns, ConstTensorView targets, double gradient_scale,
                         bool training, TensorView row_losses, TensorView loss_sum, Stream& stream) {
  check_logits(logits, num_columns, stream);
  const std::int64_t m = logits.dim(0);
  check_companion("targets", targets, m, DType::i32, stream);
  check_companion("row_losses", row_losses, m, compute_dtype(logits.dtype), stream);
  check_companion("loss_sum", loss_sum, 1, DType::f64, stream);
  if (m == 0) return;
  stream.account((training ? 4 : 2) * static_cast<double>(m) * static_cast<double>(num_columns),
                 valid_bytes(logits, num_columns) + (training ? static_cast<double>(logits.num_bytes()) : 0.0) +
                     static_cast<double>(targets.num_bytes() + 2 * row_losses.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::cross_entropy_fused(logits, num_columns, targets, gradient_scale, training, row_losses, loss_sum,
                                       stream);
    }
  }
  dispatch_float(logits.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x = logits.as<S>(), m, row_elems = logits.dim(1), num_columns, ids = targets.as<std::int32_t>(),
                    gradient_scale, training, losses = row_losses.as<C>(), out = loss_sum.as<double>()] {
      if (training) {
        const cpu::InOut in_place(x, m * row_elems);
        C* gradient = in_place;
        cpu::cross_entropy_fused(cpu::LogitRows<C>{gradient, m, row_elems, num_columns, 0}, ids, gradient_scale, true,
                                 gradient, losses, out);
      } else {
        const cpu::In<S> in(x, m * row_elems);
        cpu::cross_entropy_fused(cpu::LogitRows<C>{in, m, row_elems, num_columns, 0}, ids, gradient_scale, false,
                                 static_cast<C*>(nullptr), losses, out);
      }
    });
  });
}

}  // namespace potato
