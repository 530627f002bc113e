// Elementwise work is split by rows or flat, sums over rows by columns (see for_column_tiles); all deterministic.
// Elements moved: add_bias 2, bias_backward 1, bias_gelu_forward 3, gelu_forward 2, gelu_bias_backward 3.
#include "activation.hpp"

#include "elementwise.hpp"
#include "vector_math.hpp"

namespace potato::cpu {

namespace {

constexpr double sqrt_2_over_pi = 0.79788456080286535588;
constexpr double cubic = 0.044715;

// exp(−2u) with u = sqrt(2/π) · (x + 0.044715 x³), bounded so that it stays finite and its inverse normal. By it,
// 0.5 · (1 + tanh(u)) = 1 / (1 + exp(−2u)) without cancellation for x << 0.
template <typename T>
inline T exp_minus_2u(T x, T x_squared) {
  constexpr T largest = sizeof(T) == 4 ? 80 : 700;
  const T minus_2u =
      x * (static_cast<T>(-2 * sqrt_2_over_pi) + static_cast<T>(-2 * sqrt_2_over_pi * cubic) * x_squared);
  return fast_exp(minus_2u > largest ? largest : minus_2u);
}

template <typename T>
inline T gelu(T x) {
  return x / (1 + exp_minus_2u(x, x * x));
}

template <typename T>
inline T gelu_derivative(T x) {
  const T x_squared = x * x;
  const T e = exp_minus_2u(x, x_squared);
  const T gate = 1 / (1 + e);
  const T slope_2u = static_cast<T>(2 * sqrt_2_over_pi) + static_cast<T>(6 * sqrt_2_over_pi * cubic) * x_squared;
  return gate + x * slope_2u * (gate * (e * gate));  // 1 − gate = e · gate, without cancellation for x >> 0
}

}  // namespace

template <typename T>
void add_bias(T* x, const T* bias, std::int64_t num_rows, std::int64_t columns) {
#pragma omp parallel for schedule(static) if (num_rows * columns > min_parallel_elems)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    T* row = x + r * columns;
#pragma omp simd
    for (std::int64_t n = 0; n < columns; ++n) row[n] += bias[n];
  }
}

template <typename T>
void bias_backward(const T* dy, T* bias_gradient, std::int64_t num_rows, std::int64_t columns) {
  for_column_tiles(columns, num_rows * columns > min_parallel_elems, [=](std::int64_t begin, std::int64_t end) {
    T sums[max_tile_columns] = {};
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const T* row = dy + r * columns + begin;
#pragma omp simd
      for (std::int64_t n = 0; n < end - begin; ++n) sums[n] += row[n];
    }
    for (std::int64_t n = begin; n < end; ++n) bias_gradient[n] += sums[n - begin];
  });
}

template <typename T>
void bias_gelu_forward(T* x, const T* bias, T* y, std::int64_t num_rows, std::int64_t columns) {
#pragma omp parallel for schedule(static) if (num_rows * columns > min_parallel_compute_elems)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    T* x_row = x + r * columns;
    T* y_row = y + r * columns;
#pragma omp simd
    for (std::int64_t n = 0; n < columns; ++n) {
      const T sum = x_row[n] + bias[n];
      x_row[n] = sum;
      y_row[n] = gelu(sum);
    }
  }
}

template <typename T>
void gelu_forward(const T* x, T* y, std::int64_t num_elems) {
#pragma omp parallel for simd schedule(static) if (parallel : num_elems > min_parallel_compute_elems)
  for (std::int64_t i = 0; i < num_elems; ++i) y[i] = gelu(x[i]);
}

template <typename T>
void gelu_bias_backward(const T* dy, const T* x, T* dx, T* bias_gradient, std::int64_t num_rows, std::int64_t columns) {
  const bool parallel = num_rows * columns > min_parallel_compute_elems;
  for_column_tiles(columns, parallel, [=](std::int64_t begin, std::int64_t end) {
    T sums[max_tile_columns] = {};
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const std::int64_t first = r * columns + begin;
#pragma omp simd
      for (std::int64_t n = 0; n < end - begin; ++n) {
        const T gradient = dy[first + n] * gelu_derivative(x[first + n]);
        dx[first + n] = gradient;
        sums[n] += gradient;
      }
    }
    for (std::int64_t n = begin; n < end; ++n) bias_gradient[n] += sums[n - begin];
  });
}

#define POTATO_INSTANTIATE(T)                                                    \
  template void add_bias(T*, const T*, std::int64_t, std::int64_t);              \
  template void bias_backward(const T*, T*, std::int64_t, std::int64_t);         \
  template void bias_gelu_forward(T*, const T*, T*, std::int64_t, std::int64_t); \
  template void gelu_forward(const T*, T*, std::int64_t);                        \
  template void gelu_bias_backward(const T*, const T*, T*, T*, std::int64_t, std::int64_t);
POTATO_INSTANTIATE(float)
POTATO_INSTANTIATE(double)
#undef POTATO_INSTANTIATE

}  // namespace potato::cpu
