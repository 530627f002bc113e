#include "potato/kernels/activation.hpp"

#include <initializer_list>

#include "back_end.hpp"
#include "cpu/activation.hpp"
#include "cpu/widen.hpp"
#include "cuda/activation.hpp"

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
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  stream.account(static_cast<double>(num_elems), 2.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::add_bias(x, bias, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue([x_ = x.as<S>(), b = bias.as<S>(), num_elems, rows = x.dim(0), columns = x.dim(1)] {
      cpu::add_bias<Compute<S>>(cpu::InOut(x_, num_elems), cpu::In(b, columns), rows, columns);
    });
  });
}

void bias_backward(ConstTensorView dy, TensorView bias_gradient, Stream& stream) {
  check(stream, dy, {});
  check_columns(stream, dy, bias_gradient);
  check_compute_dtype("bias_gradient", bias_gradient, dy.dtype);
  const std::int64_t num_elems = dy.num_elems();
  if (num_elems == 0) return;
  stream.account(static_cast<double>(num_elems), static_cast<double>(dy.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::bias_backward(dy, bias_gradient, stream);
  }
  dispatch_float(dy.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([dy_ = dy.as<S>(), db = bias_gradient.as<C>(), num_elems, rows = dy.dim(0), columns = dy.dim(1)] {
      cpu::bias_backward<C>(cpu::In(dy_, num_elems), db, rows, columns);
    });
  });
}

void bias_gelu_forward(TensorView x, ConstTensorView bias, TensorView y, Stream& stream) {
  check(stream, x, {y});
  check_columns(stream, x, bias);
  if (x.num_elems() == 0) return;
  stream.account(20.0 * static_cast<double>(x.num_elems()), 3.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::bias_gelu_forward(x, bias, y, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([x_ = x.as<S>(), b = bias.as<S>(), y_ = y.as<S>(), rows = x.dim(0), columns = x.dim(1)] {
      if constexpr (is_half<S>) {  // gelu takes the rounded sum, since recompute has no other
        const std::int64_t num_elems = rows * columns;
        cpu::add_bias<C>(cpu::InOut(x_, num_elems), cpu::In(b, columns), rows, columns);
        cpu::gelu_forward<C>(cpu::In(static_cast<const S*>(x_), num_elems), cpu::Out(y_, num_elems), num_elems);
      } else {
        cpu::bias_gelu_forward(x_, b, y_, rows, columns);
      }
    });
  });
}

void gelu_forward(ConstTensorView x, TensorView y, Stream& stream) {
  check(stream, x, {y});
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  stream.account(19.0 * static_cast<double>(num_elems), 2.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::gelu_forward(x, y, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue([x_ = x.as<S>(), y_ = y.as<S>(), num_elems] {
      cpu::gelu_forward<Compute<S>>(cpu::In(x_, num_elems), cpu::Out(y_, num_elems), num_elems);
    });
  });
}

void gelu_bias_backward(ConstTensorView dy, ConstTensorView x, TensorView dx, TensorView bias_gradient,
                        Stream& stream) {
  check(stream, x, {dy, dx});
  check_columns(stream, x, bias_gradient);
  check_compute_dtype("bias_gradient", bias_gradient, x.dtype);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  stream.account(27.0 * static_cast<double>(num_elems), 3.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::gelu_bias_backward(dy, x, dx, bias_gradient, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([dy_ = dy.as<S>(), x_ = x.as<S>(), dx_ = dx.as<S>(), db = bias_gradient.as<C>(), num_elems,
                    rows = x.dim(0), columns = x.dim(1)] {
      cpu::gelu_bias_backward<C>(cpu::In(dy_, num_elems), cpu::In(x_, num_elems), cpu::Out(dx_, num_elems), db, rows,
                                 columns);
    });
  });
}

}  // namespace potato
