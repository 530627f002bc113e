// CPU twins of kernels/gemm.hpp. op(A) [M, K], op(B) [K, N], C [M, N], row-major and dense. M, N > 0; K may be 0.
#pragma once

#include <cstdint>

namespace potato::cpu {

// Through oneDNN; throws Error with its status.
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, const float* b, float beta, float* c);

// One chain of additions per element, k ascending, whatever the rest of the product looks like.
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
          const double* a, const double* b, double beta, double* c);

}  // namespace potato::cpu
