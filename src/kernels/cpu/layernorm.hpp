// CPU back end of kernels/layernorm.hpp. M rows of C channels.
#pragma once

#include <cstdint>

namespace potato::cpu {

template <typename T>
void layernorm_forward(const T* x, const T* weight, const T* bias, double eps, T* y, T* mean, T* rstd,
                       std::int64_t num_rows, std::int64_t channels);

template <typename T>
void layernorm_apply(const T* x, const T* weight, const T* bias, const T* mean, const T* rstd, T* y,
                     std::int64_t num_rows, std::int64_t channels);

// The gradients of weight and bias are summed over the rows from zero and then added once.
template <typename T>
void layernorm_backward(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd,
                        const T* residual_gradient, T* dx, T* weight_gradient, T* bias_gradient, std::int64_t num_rows,
                        std::int64_t channels);

}  // namespace potato::cpu
