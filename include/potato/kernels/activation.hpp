// Biases and the GELU of GPT-2 (tanh form; Hendrycks and Gimpel, arXiv 1606.08415).
//
// dtypes: activations, their gradients and biases are of one dtype (fp32, bf16, fp16; fp64 on the CPU); a bias_gradient
// has its compute dtype. It is added to once: a sum over the rows in the compute dtype, in an order that depends on the
// shape alone (CPU: in row order, the same for any number of threads). All tensors on the stream's device.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// x += bias per row. x [M, N], bias [N].
void add_bias(TensorView x, ConstTensorView bias, Stream& stream);

// bias_gradient[n] += sum over rows of dy[m, n]. dy [M, N].
void bias_backward(ConstTensorView dy, TensorView bias_gradient, Stream& stream);

// x += bias, then y = gelu(x) of the rounded x. x [M, N] holds the pre-activation afterwards; y [M, N]; bias [N].
void bias_gelu_forward(TensorView x, ConstTensorView bias, TensorView y, Stream& stream);

// y = gelu(x), bitwise what bias_gelu_forward wrote for this pre-activation (for recompute). x, y [M, N].
void gelu_forward(ConstTensorView x, TensorView y, Stream& stream);

// dx = dy · gelu'(x), and bias_gradient[n] += sum over rows of dx[m, n] before it is rounded. dy, x, dx [M, N]; dx may
// be dy's memory. tanh and its derivative come from an exponential (CPU: our own vectorised one), accurate to a few ulp
// of the compute dtype.
void gelu_bias_backward(ConstTensorView dy, ConstTensorView x, TensorView dx, TensorView bias_gradient, Stream& stream);

}  // namespace potato
