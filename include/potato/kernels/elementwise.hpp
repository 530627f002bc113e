// Fills, copies, conversions and sums of flat memory. All on the stream's device, in its order.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// x = value, rounded to x's dtype. Any shape; fp32, fp64, bf16 or fp16.
void fill(TensorView x, double value, Stream& stream);
// x = 0. Any shape; fp32, fp64, bf16 or fp16. x may also lie in host memory beside a GPU's stream.
void zero(TensorView x, Stream& stream);
// destination = source; same element count and dtype (any); no overlap.
void copy(ConstTensorView source, TensorView destination, Stream& stream);
// destination = source, rounded to nearest even; same element count; no overlap unless the dtypes are of one width and
// the memory is the same. Any pair of fp32, bf16 and fp16; fp64 only to or from fp64 and fp32.
void convert(ConstTensorView source, TensorView destination, Stream& stream);
// y += x; one dtype: fp32, fp64 (CPU), bf16 or fp16, the sum is made in the compute dtype and rounded once.
void add_to(ConstTensorView x, TensorView y, Stream& stream);

// result [1] fp64 += weight · sum of x², accumulated in fp64 in an order that depends on the element count alone (the
// same for any number of threads; CPU and CUDA differ in it). x: any shape; fp32, fp64 (CPU), bf16 or fp16.
void add_squared_norm(ConstTensorView x, double weight, TensorView result, Stream& stream);

}  // namespace potato
