#include "potato/kernels/dropout.hpp"

#include <initializer_list>

#include "back_end.hpp"
#include "cpu/dropout.hpp"
#include "cpu/widen.hpp"
#include "cuda/dropout.hpp"

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
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, x.dim(0), x.dim(1));  // checks the rows for every device
  stream.account(3.0 * static_cast<double>(num_elems), 3.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::bias_dropout_add_forward(x, bias, residual, y, dropout, rows, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue([x_ = x.as<S>(), b = bias.as<S>(), r = residual.as<S>(), y_ = y.as<S>(), masks, num_elems,
                    num_rows = x.dim(0), channels = x.dim(1)] {
      cpu::bias_dropout_add_forward<Compute<S>>(cpu::In(x_, num_elems), cpu::In(b, channels), cpu::In(r, num_elems),
                                                cpu::Out(y_, num_elems), masks, num_rows, channels);
    });
  });
}

void bias_dropout_add_backward(ConstTensorView dy, TensorView dx, TensorView bias_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream) {
  check(stream, dy, bias_gradient, {dx});
  check_compute_dtype("bias_gradient", bias_gradient, dy.dtype);
  const std::int64_t num_elems = dy.num_elems();
  if (num_elems == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, dy.dim(0), dy.dim(1));
  stream.account(2.0 * static_cast<double>(num_elems), 2.0 * static_cast<double>(dy.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::bias_dropout_add_backward(dy, dx, bias_gradient, dropout, rows, stream);
  }
  dispatch_float(dy.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([dy_ = dy.as<S>(), dx_ = dx.as<S>(), db = bias_gradient.as<C>(), masks, num_elems,
                    num_rows = dy.dim(0), channels = dy.dim(1)] {
      cpu::bias_dropout_add_backward<C>(cpu::In(dy_, num_elems), cpu::Out(dx_, num_elems), db, masks, num_rows,
                                        channels);
    });
  });
}

}  // namespace potato
