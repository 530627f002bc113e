#include "potato/kernels/embedding.hpp"

#include "cpu/embedding.hpp"
#include "run_on.hpp"

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
}

// x, y [M, C]; positions [T_max, C].
void check_positions(const Stream& stream, const ConstTensorView& x, const ConstTensorView& positions,
                     const ConstTensorView& y, const TokenRows& rows) {
  check_device(stream, x);
  check_device(stream, positions);
  check_device(stream, y);
  PC_CHECK(x.shape.num_dims() == 2 && positions.shape.num_dims() == 2, x.shape, " and ", positions.shape);
  PC_CHECK(x.shape == y.shape && positions.dim(1) == x.dim(1), x.shape, ", ", y.shape, ", ", positions.shape);
  PC_CHECK(rows.first_row >= 0 && rows.sequence_length >= 1 && rows.sequence_length <= positions.dim(0), "first row ",
           rows.first_row, ", sequence length ", rows.sequence_length, ", positions ", positions.shape);
}

}  // namespace

void embedding_forward(ConstTensorView tokens, ConstTensorView weight, std::int64_t first_token, TensorView y,
                       Stream& stream) {
  check_tokens(stream, tokens, weight, y);
  if (y.num_elems() == 0) return;
  dispatch_real(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 0, 2.0 * static_cast<double>(y.num_bytes()),
           [t = tokens.as<std::int32_t>(), w = weight.as<T>(), first_token, num_tokens = weight.dim(0), y_ = y.as<T>(),
            rows = y.dim(0),
            channels = y.dim(1)] { cpu::embedding_forward(t, w, first_token, num_tokens, y_, rows, channels); });
  });
}

void embedding_backward(ConstTensorView tokens, ConstTensorView dy, std::int64_t first_token,
                        TensorView weight_gradient, Stream& stream) {
  check_tokens(stream, tokens, weight_gradient, dy);
  if (dy.num_elems() == 0 || weight_gradient.num_elems() == 0) return;
  dispatch_real(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, static_cast<double>(dy.num_elems()), 3.0 * static_cast<double>(dy.num_bytes()),
           [t = tokens.as<std::int32_t>(), dy_ = dy.as<T>(), first_token, num_tokens = weight_gradient.dim(0),
            dw = weight_gradient.as<T>(), rows = dy.dim(0),
            channels = dy.dim(1)] { cpu::embedding_backward(t, dy_, first_token, num_tokens, dw, rows, channels); });
  });
}

void position_dropout_forward(ConstTensorView x, ConstTensorView positions, TensorView y, Dropout dropout,
                              TokenRows rows, Stream& stream) {
  check_positions(stream, x, positions, y, rows);
  if (x.num_elems() == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, x.dim(0), x.dim(1));
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 2.0 * static_cast<double>(x.num_elems()), 3.0 * static_cast<double>(x.num_bytes()),
           [x_ = x.as<T>(), p = positions.as<T>(), y_ = y.as<T>(), masks, rows, num_rows = x.dim(0),
            channels = x.dim(1)] { cpu::position_dropout_forward(x_, p, y_, masks, rows, num_rows, channels); });
  });
}

void position_dropout_backward(ConstTensorView dy, TensorView dx, TensorView position_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream) {
  check_positions(stream, dy, position_gradient, dx, rows);
  if (dy.num_elems() == 0) return;
  const cpu::RowMasks masks = cpu::row_masks(dropout, rows, dy.dim(0), dy.dim(1));
  dispatch_real(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 2.0 * static_cast<double>(dy.num_elems()), 4.0 * static_cast<double>(dy.num_bytes()),
           [dy_ = dy.as<T>(), dx_ = dx.as<T>(), dp = position_gradient.as<T>(), masks, rows, num_rows = dy.dim(0),
            channels = dy.dim(1)] { cpu::position_dropout_backward(dy_, dx_, dp, masks, rows, num_rows, channels); });
  });
}

}  // namespace potato
