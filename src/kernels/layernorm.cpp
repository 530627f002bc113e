#include "potato/kernels/layernorm.hpp"

#include <initializer_list>

#include "cpu/layernorm.hpp"
#include "run_on.hpp"

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
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  check_vectors(stream, channels, {weight, bias});
  check_vectors(stream, rows, {mean, rstd});
  if (x.num_elems() == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 8.0 * static_cast<double>(x.num_elems()), 2.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), w = weight.as<T>(), b = bias.as<T>(), eps, y_ = y.as<T>(), m = mean.as<T>(),
            s = rstd.as<T>(), rows, channels] { cpu::layernorm_forward(x_, w, b, eps, y_, m, s, rows, channels); });
  });
}

void layernorm_apply(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, ConstTensorView mean,
                     ConstTensorView rstd, TensorView y, Stream& stream) {
  check_matrices(stream, x, {y});
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  check_vectors(stream, channels, {weight, bias});
  check_vectors(stream, rows, {mean, rstd});
  if (x.num_elems() == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 4.0 * static_cast<double>(x.num_elems()), 2.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), w = weight.as<T>(), b = bias.as<T>(), m = mean.as<T>(), s = rstd.as<T>(), y_ = y.as<T>(),
            rows, channels] { cpu::layernorm_apply(x_, w, b, m, s, y_, rows, channels); });
  });
}

void layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView weight, ConstTensorView mean,
                        ConstTensorView rstd, ConstTensorView residual_gradient, TensorView dx,
                        TensorView weight_gradient, TensorView bias_gradient, Stream& stream) {
  check_matrices(stream, x, {dy, residual_gradient, dx});
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  check_vectors(stream, channels, {weight, weight_gradient, bias_gradient});
  check_vectors(stream, rows, {mean, rstd});
  if (x.num_elems() == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 16.0 * static_cast<double>(x.num_elems()), 4.0 * static_cast<double>(x.num_bytes()),
           [dy_ = dy.as<T>(), x_ = x.as<T>(), w = weight.as<T>(), m = mean.as<T>(), s = rstd.as<T>(),
            r = residual_gradient.as<T>(), dx_ = dx.as<T>(), dw = weight_gradient.as<T>(), db = bias_gradient.as<T>(),
            rows, channels] { cpu::layernorm_backward(dy_, x_, w, m, s, r, dx_, dw, db, rows, channels); });
  });
}

}  // namespace potato
