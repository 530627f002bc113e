// CPU twins of kernels/cross_entropy.hpp; see there. T is float or double. Rows are independent and split over threads.
#pragma once

#include <cstdint>

namespace potato::cpu {

// logits [num_rows, row_elems], of which the first num_columns columns count.
template <typename T>
struct LogitRows {
  const T* logits;
  std::int64_t num_rows;
  std::int64_t row_elems;
  std::int64_t num_columns;
  std::int64_t first_token;
};

template <typename T>
void cross_entropy_max(const LogitRows<T>& rows, T* row_max);

template <typename T>
void cross_entropy_sums(const LogitRows<T>& rows, const std::int32_t* targets, const T* row_max, T* sums);

template <typename T>
void cross_entropy_loss(std::int64_t num_rows, const T* sums, const std::int32_t* targets, double* loss_sum);

// `gradient` is the memory of rows.logits.
template <typename T>
void cross_entropy_backward(const LogitRows<T>& rows, const std::int32_t* targets, const T* row_max, const T* sums,
                            double gradient_scale, T* gradient);

// All steps for an unsplit vocabulary; rows.first_token is 0. Only in training, `gradient` (the memory of rows.logits)
// is written.
template <typename T>
void cross_entropy_fused(const LogitRows<T>& rows, const std::int32_t* targets, double gradient_scale, bool training,
                         T* gradient, T* row_losses, double* loss_sum);

}  // namespace potato::cpu
