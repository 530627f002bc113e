// CPU back end of kernels/activation.hpp. M rows of N columns.
#pragma once

#include <cstdint>

namespace potato::cpu {

template <typename T>
void add_bias(T* x, const T* bias, std::int64_t num_rows, std::int64_t columns);

// Here and below a bias gradient is summed over the rows from zero and then added once.
template <typename T>
void bias_backward(const T* dy, T* bias_gradient, std::int64_t num_rows, std::int64_t columns);

template <typename T>
void bias_gelu_forward(T* x, const T* bias, T* y, std::int64_t num_rows, std::int64_t columns);

template <typename T>
void gelu_forward(const T* x, T* y, std::int64_t num_elems);

template <typename T>
void gelu_bias_backward(const T* dy, const T* x, T* dx, T* bias_gradient, std::int64_t num_rows, std::int64_t columns);

}  // namespace potato::cpu
