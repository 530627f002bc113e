#include "potato/kernels/activation.hpp"

#include <initializer_list>

#include "cpu/activation.hpp"
#include "run_on.hpp"

namespace potato {

namespace {

void check(const Stream& stream, const ConstTensorView& x, std::initializer_list<ConstTensorView> same_shape) {
  check_device(stream, x);
  PC_CHECK(x.shape.num_dims() == 2, "x ", x.shape);
  for (const ConstTensorView& view : same_shape) {
    check_device(stream, view);
    PC_CHECK(view.shape == x.shape, view.shape, " beside x ", x.shape);
  }
}

void check_columns(const Stream& stream, const ConstTensorView& x, const ConstTensorView& bias) {
  check_device(stream, bias);
  PC_CHECK(bias.num_elems() == x.dim(1), "bias ", bias.shape, " beside x ", x.shape);
}

}  // namespace

void add_bias(TensorView x, ConstTensorView bias, Stream& stream) {
  check(stream, x, {});
  check_columns(stream, x, bias);
  if (x.num_elems() == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, static_cast<double>(x.num_elems()), 2.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), b = bias.as<T>(), rows = x.dim(0), columns = x.dim(1)] {
             cpu::add_bias(x_, b, rows, columns);
           });
  });
}

void bias_backward(ConstTensorView dy, TensorView bias_gradient, Stream& stream) {
  check(stream, dy, {});
  check_columns(stream, dy, bias_gradient);
  if (dy.num_elems() == 0) return;
  dispatch_real(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, static_cast<double>(dy.num_elems()), static_cast<double>(dy.num_bytes()),
           [dy_ = dy.as<T>(), db = bias_gradient.as<T>(), rows = dy.dim(0), columns = dy.dim(1)] {
             cpu::bias_backward(dy_, db, rows, columns);
           });
  });
}

void bias_gelu_forward(TensorView x, ConstTensorView bias, TensorView y, Stream& stream) {
  check(stream, x, {y});
  check_columns(stream, x, bias);
  if (x.num_elems() == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 20.0 * static_cast<double>(x.num_elems()), 3.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), b = bias.as<T>(), y_ = y.as<T>(), rows = x.dim(0), columns = x.dim(1)] {
             cpu::bias_gelu_forward(x_, b, y_, rows, columns);
           });
  });
}

void gelu_forward(ConstTensorView x, TensorView y, Stream& stream) {
  check(stream, x, {y});
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 19.0 * static_cast<double>(num_elems), 2.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), y_ = y.as<T>(), num_elems] { cpu::gelu_forward(x_, y_, num_elems); });
  });
}

void gelu_bias_backward(ConstTensorView dy, ConstTensorView x, TensorView dx, TensorView bias_gradient,
                        Stream& stream) {
  check(stream, x, {dy, dx});
  check_columns(stream, x, bias_gradient);
  if (x.num_elems() == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 27.0 * static_cast<double>(x.num_elems()), 3.0 * static_cast<double>(x.num_bytes()),
           [dy_ = dy.as<T>(), x_ = x.as<T>(), dx_ = dx.as<T>(), db = bias_gradient.as<T>(), rows = x.dim(0),
            columns = x.dim(1)] { cpu::gelu_bias_backward(dy_, x_, dx_, db, rows, columns); });
  });
}

}  // namespace potato
