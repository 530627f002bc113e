#include "cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vector_math.hpp"

namespace potato::cpu {

namespace {

// Below this many elements a parallel region costs more than it saves.
constexpr std::int64_t serial_elems = 16384;
// Sums run in the dtype over this many columns, then in double.
constexpr std::int64_t sum_block = 1024;

// Column of a row's target in this shard, or −1.
template <typename T>
std::int64_t target_column(const LogitRows<T>& rows, std::int32_t target) {
  const std::int64_t column = target - rows.first_token;
  return target >= 0 && column >= 0 && column < rows.num_columns ? column : -1;
}

template <typename T>
double sum_of_exponentials(const T* logits, std::int64_t num_columns, T maximum) {
  double total = 0;
  for (std::int64_t begin = 0; begin < num_columns; begin += sum_block) {
    const std::int64_t end = std::min(num_columns, begin + sum_block);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = begin; j < end; ++j) sum += fast_exp(logits[j] - maximum);
    total += static_cast<double>(sum);
  }
  return total;
}

template <typename T>
T greatest_of(const T* logits, std::int64_t num_columns) {
  T greatest = std::numeric_limits<T>::lowest();
#pragma omp simd reduction(max : greatest)
  for (std::int64_t j = 0; j < num_columns; ++j) greatest = logits[j] > greatest ? logits[j] : greatest;
  return greatest;
}

// The gradient of a row in place, from its greatest logit and sum of exponentials.
template <typename T>
void write_gradient(const LogitRows<T>& rows, std::int32_t target, T maximum, double sum, double gradient_scale,
                    T* row) {
  if (target < 0) {
    std::fill(row, row + rows.row_elems, T{0});
    return;
  }
  const T factor = static_cast<T>(gradient_scale / sum);
#pragma omp simd
  for (std::int64_t j = 0; j < rows.num_columns; ++j) row[j] = fast_exp(row[j] - maximum) * factor;
  std::fill(row + rows.num_columns, row + rows.row_elems, T{0});
  const std::int64_t column = target_column(rows, target);
  if (column >= 0) row[column] -= static_cast<T>(gradient_scale);
}

}  // namespace

template <typename T>
void cross_entropy_max(const LogitRows<T>& rows, T* row_max) {
#pragma omp parallel for schedule(static) if (rows.num_rows * rows.num_columns > serial_elems)
  for (std::int64_t m = 0; m < rows.num_rows; ++m) {
    row_max[m] = greatest_of(rows.logits + m * rows.row_elems, rows.num_columns);
  }
}

template <typename T>
void cross_entropy_sums(const LogitRows<T>& rows, const std::int32_t* targets, const T* row_max, T* sums) {
#pragma omp parallel for schedule(static) if (rows.num_rows * rows.num_columns > serial_elems)
  for (std::int64_t m = 0; m < rows.num_rows; ++m) {
    const T* logits = rows.logits + m * rows.row_elems;
    const std::int64_t column = target_column(rows, targets[m]);
    sums[m] = static_cast<T>(sum_of_exponentials(logits, rows.num_columns, row_max[m]));
    sums[rows.num_rows + m] = column >= 0 ? logits[column] - row_max[m] : T{0};
  }
}

template <typename T>
void cross_entropy_loss(std::int64_t num_rows, const T* sums, const std::int32_t* targets, double* loss_sum) {
  double total = *loss_sum;
  for (std::int64_t m = 0; m < num_rows; ++m) {
    if (targets[m] >= 0) total += std::log(static_cast<double>(sums[m])) - static_cast<double>(sums[num_rows + m]);
  }
  *loss_sum = total;
}

template <typename T>
void cross_entropy_backward(const LogitRows<T>& rows, const std::int32_t* targets, const T* row_max, const T* sums,
                            double gradient_scale, T* gradient) {
#pragma omp parallel for schedule(static) if (rows.num_rows * rows.row_elems > serial_elems)
  for (std::int64_t m = 0; m < rows.num_rows; ++m) {
    write_gradient(rows, targets[m], row_max[m], static_cast<double>(sums[m]), gradient_scale,
                   gradient + m * rows.row_elems);
  }
}

template <typename T>
void cross_entropy_fused(const LogitRows<T>& rows, const std::int32_t* targets, double gradient_scale, bool training,
                         T* gradient, T* row_losses, double* loss_sum) {
#pragma omp parallel for schedule(static) if (rows.num_rows * rows.num_columns > serial_elems)
  for (std::int64_t m = 0; m < rows.num_rows; ++m) {
    const T* logits = rows.logits + m * rows.row_elems;
    const T maximum = greatest_of(logits, rows.num_columns);
    const double sum = sum_of_exponentials(logits, rows.num_columns, maximum);
    const std::int64_t column = target_column(rows, targets[m]);
    const double of_target = column >= 0 ? static_cast<double>(logits[column]) - static_cast<double>(maximum) : 0.0;
    row_losses[m] = targets[m] >= 0 ? static_cast<T>(std::log(sum) - of_target) : T{0};
    if (training) write_gradient(rows, targets[m], maximum, sum, gradient_scale, gradient + m * rows.row_elems);
  }
  double total = 0;
  for (std::int64_t m = 0; m < rows.num_rows; ++m) total += static_cast<double>(row_losses[m]);
  *loss_sum += total;
}

#define POTATO_INSTANTIATE(T)                                                                                     \
  template void cross_entropy_max(const LogitRows<T>&, T*);                                                       \
  template void cross_entropy_sums(const LogitRows<T>&, const std::int32_t*, const T*, T*);                       \
  template void cross_entropy_loss(std::int64_t, const T*, const std::int32_t*, double*);                         \
  template void cross_entropy_backward(const LogitRows<T>&, const std::int32_t*, const T*, const T*, double, T*); \
  template void cross_entropy_fused(const LogitRows<T>&, const std::int32_t*, double, bool, T*, T*, double*);
POTATO_INSTANTIATE(float)
POTATO_INSTANTIATE(double)
#undef POTATO_INSTANTIATE

}  // namespace potato::cpu
