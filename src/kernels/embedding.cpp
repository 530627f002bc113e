#include "potato/kernels/embedding.hpp"

#include "back_end.hpp"
#include "cpu/embedding.hpp"
#include "cpu/widen.hpp"
#include "cuda/embedding.hpp"

namespace potato {

namespace {

// tokens [M], weight [V_local, C], activation [M, C].
void check_tokens(const Stream& stream, const ConstTensorView& tokens, const ConstTensorView& weight,
                  const ConstTensorView& activation) {
  check_device(stream, tokens);
  check_device(stream, weight);
  check_device(stream, activation);
  PC_CHECK(weight.shape.num_dims() == 2 && activation.shape.num_dims() == 2, weight.shape, " and ", activation.shape);
  PC_CHECK(tokens.num_elems() == activation.dim(0), tokens.shape, " beside ", activation.shape);
  PC_CHECK(weight.dim(1) == activation.dim(1), weight.shape, " beside ", activation.shape);
  PC_CHECK(tokens.dtype == DType::i32, "tokens are ", dtype_name(tokens.dtype));
}

// x, y [M, C]; positions [T_max, C].
void check_positions(const Stream& stream, const ConstTensorView& x, const ConstTensorView& positions,
                     const ConstTensorView& y, const TokenRows& rows) {
  check_device(stream, x);
  check_device(stream, positions);
  check_device(stream, y);
  PC_CHECK(x.shape.num_dims() == 2 && positions.shape.num_dims() == 2, x.shape, " and ", positions.shape);
  PC_CHECK(x.dtype == y.dtype, dtype_name(x.dtype), " and ", dtype_name(y.dtype));
  PC_CHECK(x.shape == y.shape && positions.dim(1) == x.dim(1), x.shape, ", ", y.shape, ", ", positions.shape);
  PC_CHECK(rows.first_row >= 0 && rows.sequence_length >= 1 && rows.sequence_length <= positions.dim(0), "first row ",
           rows.first_row, ", sequence length ", rows.sequence_length, ", positions ", positions.shape);
}

}  // namespace

void embedding_forward(ConstTensorView tokens, ConstTensorView weight, std::int64_t first_token, TensorView y,
                       Stream& stream) {
  check_tokens(stream, tokens, weight, y);
  PC_CHECK(weight.dtype == y.dtype, "weight is ", dtype_name(weight.dtype), ", y is ", dtype_name(y.dtype));
  if (y.num_elems() == 0) return;
  stream.account(0, 2.0 * static_cast<double>(y.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::embedding_forward(tokens, weight, first_token, y, stream);
  }
  dispatch_float(y.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue([t = tokens.as<std::int32_t>(), w = weight.as<S>(), first_token, num_tokens = weight.dim(0),
                    y_ = y.as<S>(), rows = y.dim(0), channels = y.dim(1)] {
      cpu::embedding_forward(t, w, first_token, num_tokens, y_, rows, channels);
    });
  });
}

void embedding_backward(ConstTensorView tokens, ConstTensorView dy, std::int64_t first_token,
                        TensorView weight_gradient, Stream& stream) {
  check_tokens(stream, tokens, weight_gradient, dy);
  check_compute_dtype("weight_gradient", weight_gradient, dy.dtype);
  if (dy.num_elems() == 0 || weight_gradient.num_elems() == 0) return;
  const auto num_elems = static_cast<double>(dy.num_elems());
  stream.account(num_elems, static_cast<double>(dy.num_bytes()) +
                                2 * num_elems * static_cast<double>(dtype_bytes(weight_gradient.dtype)));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::embedding_backward(tokens, dy, first_token, weight_gradient, stream);
  }
  dispatch_float(dy.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([t = tokens.as<std::int32_t>(), dy_ = dy.as<S>(), first_token, num_tokens = weight_gradient.dim(0),
                    dw = weight_gradient.as<C>(), rows = dy.dim(0), channels = dy.dim(1)] {
      cpu::embedding_backward<C>(t, cpu::In(dy_, rows * channels), first_token, num_tokens, dw, rows, channels);
    });
  });
}

void position_dropout_forward(ConstTensorView x, ConstTensorView positions, TensorView y, Dropout dropout,
                              TokenRows rows, Stream& stream) {
  check_positions(stream, x, positions, y, rows);
  PC_CHECK(positions.dtype == x.dtype, "positions are ", dtype_name(positions.dtype), ", x is ", dtype_name(x.dtype));
  if (x.num_elems() == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, x.dim(0), x.dim(1));
  stream.account(2.0 * static_cast<double>(x.num_elems()), 3.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::position_dropout_forward(x, positions, y, dropout, rows, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue(
        [x_ = x.as<S>(), p = positions.as<S>(), y_ = y.as<S>(), masks, rows, num_rows = x.dim(0), channels = x.dim(1)] {
          const std::int64_t n = num_rows * channels;
          cpu::position_dropout_forward<Compute<S>>(cpu::In(x_, n), cpu::In(p, rows.sequence_length * channels),
                                                    cpu::Out(y_, n), masks, rows, num_rows, channels);
        });
  });
}

void position_dropout_backward(ConstTensorView dy, TensorView dx, TensorView position_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream) {
  check_positions(stream, dy, position_gradient, dx, rows);
  check_compute_dtype("position_gradient", position_gradient, dy.dtype);
  if (dy.num_elems() == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, dy.dim(0), dy.dim(1));
  stream.account(2.0 * static_cast<double>(dy.num_elems()),
                 2.0 * static_cast<double>(dy.num_bytes()) + 2.0 * static_cast<double>(position_gradient.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::position_dropout_backward(dy, dx, position_gradient, dropout, rows, stream);
  }
  dispatch_float(dy.dtype, [&](auto zero) {
    using S = decltype(zero);
    using C = Compute<S>;
    stream.enqueue([dy_ = dy.as<S>(), dx_ = dx.as<S>(), dp = position_gradient.as<C>(), masks, rows,
                    num_rows = dy.dim(0), channels = dy.dim(1)] {
      const std::int64_t n = num_rows * channels;
      cpu::position_dropout_backward<C>(cpu::In(dy_, n), cpu::Out(dx_, n), dp, masks, rows, num_rows, channels);
    });
  });
}

}  // namespace potato
