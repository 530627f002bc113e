#include "potato/kernels/dropout.hpp"

#include <initializer_list>

#include "cpu/dropout.hpp"
#include "run_on.hpp"

namespace potato {

namespace {

void check(const Stream& stream, const ConstTensorView& x, const ConstTensorView& bias,
           std::initializer_list<ConstTensorView> same_shape) {
  check_device(stream, x);
  check_device(stream, bias);
  PC_CHECK(x.shape.num_dims() == 2, "x ", x.shape);
  PC_CHECK(bias.num_elems() == x.dim(1), "bias ", bias.shape, " beside x ", x.shape);
  for (const ConstTensorView& view : same_shape) {
    check_device(stream, view);
    PC_CHECK(view.shape == x.shape, view.shape, " beside x ", x.shape);
  }
}

}  // namespace

void bias_dropout_add_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual, TensorView y,
                              Dropout dropout, TokenRows rows, Stream& stream) {
  check(stream, x, bias, {residual, y});
  if (x.num_elems() == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, x.dim(0), x.dim(1));
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 3.0 * static_cast<double>(x.num_elems()), 3.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), b = bias.as<T>(), r = residual.as<T>(), y_ = y.as<T>(), masks, num_rows = x.dim(0),
            channels = x.dim(1)] { cpu::bias_dropout_add_forward(x_, b, r, y_, masks, num_rows, channels); });
  });
}

void bias_dropout_add_backward(ConstTensorView dy, TensorView dx, TensorView bias_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream) {
  check(stream, dy, bias_gradient, {dx});
  if (dy.num_elems() == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, dy.dim(0), dy.dim(1));
  dispatch_real(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 2.0 * static_cast<double>(dy.num_elems()), 2.0 * static_cast<double>(dy.num_bytes()),
           [dy_ = dy.as<T>(), dx_ = dx.as<T>(), db = bias_gradient.as<T>(), masks, num_rows = dy.dim(0),
            channels = dy.dim(1)] { cpu::bias_dropout_add_backward(dy_, dx_, db, masks, num_rows, channels); });
  });
}

}  // namespace potato
