// Matrix products.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// C = alpha · op(A) · op(B) + beta · C, row-major; op(X) is X or its transpose.
//   op(A) [M, K], op(B) [K, N] of one dtype (fp32, fp64, bf16, fp16); C [M, N] of that dtype or its compute dtype.
// With beta = 0 the old C is never read; sums are kept in the compute dtype and rounded once. On the CPU fp32 goes
// through oneDNN, and fp64 is our own blocked kernel with one fixed order of sums per element (k ascending), whatever
// M, N and the threads. On a GPU cuBLASLt. C must not overlap A or B. Throws Error on shapes or dtypes that do not
// match. Deterministic.
void gemm(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b, TensorView c, double alpha,
          double beta, Stream& stream);

}  // namespace potato
