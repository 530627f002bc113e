#include "potato/kernels/layernorm.hpp"

#include <initializer_list>

#include "back_end.hpp"
#include "cpu/dropout.hpp"
#include "cpu/layernorm.hpp"
#include "cpu/widen.hpp"
#include "cuda/layernorm.hpp"

namespace potato {

namespace {

void check_matrices(const Stream& stream, const ConstTensorView& x, std::initializer_list<ConstTensorView> others) {
  check_device(stream, x);
  PC_CHECK(x.shape.num_dims() == 2, "x ", x.shape);
  for (const ConstTensorView& view : others) {
    check_device(stream, view);
    PC_CHECK(view.shape == x.shape, view.shape, " beside x ", x.shape);
  }
}

void check_vectors(const Stream& stream, std::int64_t length, std::initializer_list<ConstTensorView> views) {
  for (const ConstTensorView& view : views) {
    check_device(stream, view);
    PC_CHECK(view.num_elems() == length, view.shape, " where ", length, " elements are due");
  }
}

}  // namespace

void layernorm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, double eps, TensorView y,
                       TensorView mean, TensorView rstd, Stream& stream) {
  check_matrices(stream, x, {y});
  const std::int64_t rows = x.dim(0), channels = x.dim(1), num_elems = x.num_elems();
  check_vectors(stream, channels, {weight, bias});
  check_vectors(stream, rows, {mean, rstd});
  check_compute_dtype("mean", mean, x.dtype);
  check_compute_dtype("rstd", rstd, x.dtype);
  if (num_elems == 0) return;
  stream.account(8.0 * static_cast<double>(num_elems), 2.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::layernorm_forward(x, weight, bias, eps, y, mean, rstd, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x_ = x.as<S>(), w = weight.as<S>(), b = bias.as<S>(), eps, y_ = y.as<S>(), m = mean.as<C>(),
                    s = rstd.as<C>(), rows, channels, num_elems] {
      cpu::layernorm_forward<C>(cpu::In(x_, num_elems), cpu::In(w, channels), cpu::In(b, channels), eps,
                                cpu::Out(y_, num_elems), m, s, rows, channels);
    });
  });
}

void layernorm_apply(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, ConstTensorView mean,
                     ConstTensorView rstd, TensorView y, Stream& stream) {
  check_matrices(stream, x, {y});
  const std::int64_t rows = x.dim(0), channels = x.dim(1), num_elems = x.num_elems();
  check_vectors(stream, channels, {weight, bias});
  check_vectors(stream, rows, {mean, rstd});
  check_compute_dtype("mean", mean, x.dtype);
  check_compute_dtype("rstd", rstd, x.dtype);
  if (num_elems == 0) return;
  stream.account(4.0 * static_cast<double>(num_elems), 2.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::layernorm_apply(x, weight, bias, mean, rstd, y, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x_ = x.as<S>(), w = weight.as<S>(), b = bias.as<S>(), m = mean.as<C>(), s = rstd.as<C>(),
                    y_ = y.as<S>(), rows, channels, num_elems] {
      cpu::layernorm_apply<C>(cpu::In(x_, num_elems), cpu::In(w, channels), cpu::In(b, channels), m, s,
                              cpu::Out(y_, num_elems), rows, channels);
    });
  });
}

void layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView weight, ConstTensorView mean,
                        ConstTensorView rstd, ConstTensorView residual_gradient, TensorView dx,
                        TensorView weight_gradient, TensorView bias_gradient, Stream& stream) {
  check_matrices(stream, x, {dy, residual_gradient, dx});
  const std::int64_t rows = x.dim(0), channels = x.dim(1), num_elems = x.num_elems();
  check_vectors(stream, channels, {weight, weight_gradient, bias_gradient});
  check_vectors(stream, rows, {mean, rstd});
  check_compute_dtype("mean", mean, x.dtype);
  check_compute_dtype("rstd", rstd, x.dtype);
  check_compute_dtype("weight_gradient", weight_gradient, x.dtype);
  check_compute_dtype("bias_gradient", bias_gradient, x.dtype);
  if (num_elems == 0) return;
  stream.account(16.0 * static_cast<double>(num_elems), 4.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::layernorm_backward(dy, x, weight, mean, rstd, residual_gradient, dx, weight_gradient, bias_gradient,
                                      stream);
    }
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([dy_ = dy.as<S>(), x_ = x.as<S>(), w = weight.as<S>(), m = mean.as<C>(), s = rstd.as<C>(),
                    r = residual_gradient.as<S>(), dx_ = dx.as<S>(), dw = weight_gradient.as<C>(),
                    db = bias_gradient.as<C>(), rows, channels, num_elems] {
      cpu::layernorm_backward<C>(cpu::In(dy_, num_elems), cpu::In(x_, num_elems), cpu::In(w, channels), m, s,
                                 cpu::In(r, num_elems), cpu::Out(dx_, num_elems), dw, db, rows, channels);
    });
  });
}

void bias_dropout_add_layernorm_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                                        TensorView sum, Dropout dropout, TokenRows rows, ConstTensorView weight,
                                        ConstTensorView norm_bias, double eps, TensorView y, TensorView mean,
                                        TensorView rstd, Stream& stream) {
  check_matrices(stream, x, {residual, sum, y});
  const std::int64_t num_rows = x.dim(0), channels = x.dim(1), num_elems = x.num_elems();
  check_vectors(stream, channels, {bias, weight, norm_bias});
  check_vectors(stream, num_rows, {mean, rstd});
  check_compute_dtype("mean", mean, x.dtype);
  check_compute_dtype("rstd", rstd, x.dtype);
  if (num_elems == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, num_rows, channels);  // checks the rows for every device
  stream.account(11.0 * static_cast<double>(num_elems), 4.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::bias_dropout_add_layernorm_forward(x, bias, residual, sum, dropout, rows, weight, norm_bias, eps, y,
                                                      mean, rstd, stream);
    }
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x_ = x.as<S>(), branch_bias = bias.as<S>(), r = residual.as<S>(), sum_ = sum.as<S>(), masks,
                    w = weight.as<S>(), b = norm_bias.as<S>(), eps, y_ = y.as<S>(), m = mean.as<C>(), s = rstd.as<C>(),
                    num_rows, channels, num_elems] {
      cpu::bias_dropout_add_forward<C>(cpu::In(x_, num_elems), cpu::In(branch_bias, channels), cpu::In(r, num_elems),
                                       cpu::Out(sum_, num_elems), masks, num_rows, channels);
      const S* rounded = sum_;
      cpu::layernorm_forward<C>(cpu::In(rounded, num_elems), cpu::In(w, channels), cpu::In(b, channels), eps,
                                cpu::Out(y_, num_elems), m, s, num_rows, channels);
    });
  });
}

}  // namespace potato
