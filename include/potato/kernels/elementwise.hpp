// Fills, copies and sums of flat memory.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// x = value. Any shape, fp32 or fp64.
void fill(TensorView x, double value, Stream& stream);
// destination = source; same shape element count and dtype (any).
void copy(ConstTensorView source, TensorView destination, Stream& stream);
// y += x.
void add_to(ConstTensorView x, TensorView y, Stream& stream);

// result [1] fp64 += weight · sum of x², accumulated in fp64 over fixed blocks (the same for any number of threads).
// x: any shape, fp32 or fp64.
void add_squared_norm(ConstTensorView x, double weight, TensorView result, Stream& stream);

}  // namespace potato
