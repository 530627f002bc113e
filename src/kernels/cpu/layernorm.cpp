// Rows are split between threads; the sums over rows in backward are split by columns (see for_column_tiles).
// Forward reads 1 and writes 1 element for each of x (a row stays in the L1 cache); backward reads dy and x twice.
#include "layernorm.hpp"

#include <cmath>
#include <cstring>

#include "elementwise.hpp"

namespace potato::cpu {

namespace {

// One hardware vector of T (GCC and Clang split it where the machine's are shorter).
template <typename T>
struct Vector {
  static constexpr std::int64_t width = 32 / sizeof(T);
  typedef T Type __attribute__((vector_size(32)));
};

// Sum over i in [0, n) of term(at), where at(p) is p[i], for one i or for a vector of them. Four vectors of
// accumulators; the order of the sum depends on n alone. (Left to the compiler, such a sum stays scalar.)
template <typename T, typename Term>
inline T row_sum(std::int64_t n, const Term& term) {
  using Lanes = typename Vector<T>::Type;
  constexpr std::int64_t width = Vector<T>::width;
  const auto vector_at = [](std::int64_t i) {
    return [i](const T* p) __attribute__((always_inline)) {
      Lanes lanes;
      std::memcpy(&lanes, p + i, sizeof(lanes));
      return lanes;
    };
  };
  Lanes sum0{}, sum1{}, sum2{}, sum3{};
  std::int64_t i = 0;
  for (; i + 4 * width <= n; i += 4 * width) {
    sum0 += term(vector_at(i));
    sum1 += term(vector_at(i + width));
    sum2 += term(vector_at(i + 2 * width));
    sum3 += term(vector_at(i + 3 * width));
  }
  for (; i + width <= n; i += width) sum0 += term(vector_at(i));
  T rest = 0;
  for (; i < n; ++i) rest += term([i](const T* p) { return p[i]; });
  const Lanes lanes = (sum0 + sum1) + (sum2 + sum3);
  T total = 0;
  for (std::int64_t lane = 0; lane < width; ++lane) total += lanes[lane];
  return total + rest;
}

template <typename T>
inline void apply_row(const T* x, const T* weight, const T* bias, T mean, T rstd, T* y, std::int64_t channels) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
}

// weight_gradient[c] and bias_gradient[c] for c in [begin, end).
template <typename T>
void add_column_gradients(const T* dy, const T* x, const T* mean, const T* rstd, T* weight_gradient, T* bias_gradient,
                          std::int64_t num_rows, std::int64_t channels, std::int64_t begin, std::int64_t end) {
  T weight_sums[max_tile_columns] = {};
  T bias_sums[max_tile_columns] = {};
  const std::int64_t width = end - begin;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const T* dy_row = dy + r * channels + begin;
    const T* x_row = x + r * channels + begin;
    const T row_mean = mean[r];
    const T row_rstd = rstd[r];
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) {
      weight_sums[c] += dy_row[c] * ((x_row[c] - row_mean) * row_rstd);
      bias_sums[c] += dy_row[c];
    }
  }
  for (std::int64_t c = 0; c < width; ++c) {
    weight_gradient[begin + c] += weight_sums[c];
    bias_gradient[begin + c] += bias_sums[c];
  }
}

}  // namespace

template <typename T>
void layernorm_forward(const T* x, const T* weight, const T* bias, double eps, T* y, T* mean, T* rstd,
                       std::int64_t num_rows, std::int64_t channels) {
  const T inverse = static_cast<T>(1.0 / static_cast<double>(channels));
#pragma omp parallel for schedule(static) if (num_rows * channels > min_parallel_compute_elems)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const T* row = x + r * channels;
    const T row_mean = row_sum<T>(channels, [=](auto at) { return at(row); }) * inverse;
    const T variance = row_sum<T>(channels,
                                  [=](auto at) {
                                    const auto centred = at(row) - row_mean;
                                    return centred * centred;
                                  }) *
                       inverse;
    const T row_rstd = 1 / std::sqrt(variance + static_cast<T>(eps));
    mean[r] = row_mean;
    rstd[r] = row_rstd;
    apply_row(row, weight, bias, row_mean, row_rstd, y + r * channels, channels);
  }
}

template <typename T>
void layernorm_apply(const T* x, const T* weight, const T* bias, const T* mean, const T* rstd, T* y,
                     std::int64_t num_rows, std::int64_t channels) {
#pragma omp parallel for schedule(static) if (num_rows * channels > min_parallel_compute_elems)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    apply_row(x + r * channels, weight, bias, mean[r], rstd[r], y + r * channels, channels);
  }
}

template <typename T>
void layernorm_backward(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd,
                        const T* residual_gradient, T* dx, T* weight_gradient, T* bias_gradient, std::int64_t num_rows,
                        std::int64_t channels) {
  const bool parallel = num_rows * channels > min_parallel_compute_elems;
  for_column_tiles(channels, parallel, [=](std::int64_t begin, std::int64_t end) {
    add_column_gradients(dy, x, mean, rstd, weight_gradient, bias_gradient, num_rows, channels, begin, end);
  });
  const T inverse = static_cast<T>(1.0 / static_cast<double>(channels));
#pragma omp parallel for schedule(static) if (parallel)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const T* dy_row = dy + r * channels;
    const T* x_row = x + r * channels;
    const T* residual_row = residual_gradient + r * channels;
    T* dx_row = dx + r * channels;
    const T row_mean = mean[r];
    const T row_rstd = rstd[r];
    const T mean_g = row_sum<T>(channels, [=](auto at) { return at(dy_row) * at(weight); }) * inverse;
    const T mean_gx =
        row_sum<T>(channels, [=](auto at) { return at(dy_row) * at(weight) * ((at(x_row) - row_mean) * row_rstd); }) *
        inverse;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      dx_row[c] =
          residual_row[c] + row_rstd * (dy_row[c] * weight[c] - mean_g - (x_row[c] - row_mean) * row_rstd * mean_gx);
    }
  }
}

#define POTATO_INSTANTIATE(T)                                                                                      \
  template void layernorm_forward(const T*, const T*, const T*, double, T*, T*, T*, std::int64_t, std::int64_t);   \
  template void layernorm_apply(const T*, const T*, const T*, const T*, const T*, T*, std::int64_t, std::int64_t); \
  template void layernorm_backward(const T*, const T*, const T*, const T*, const T*, const T*, T*, T*, T*,         \
                                   std::int64_t, std::int64_t);
POTATO_INSTANTIATE(float)
POTATO_INSTANTIATE(double)
#undef POTATO_INSTANTIATE

}  // namespace potato::cpu
