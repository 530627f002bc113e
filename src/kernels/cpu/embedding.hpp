// CPU back end of kernels/embedding.hpp. M rows of C channels.
#pragma once

#include <cstdint>

#include "dropout.hpp"

namespace potato::cpu {

// T is float, double, BFloat16 or Float16 here; float or double below.
template <typename T>
void embedding_forward(const std::int32_t* tokens, const T* weight, std::int64_t first_token, std::int64_t num_tokens,
                       T* y, std::int64_t num_rows, std::int64_t channels);

template <typename T>
void embedding_backward(const std::int32_t* tokens, const T* dy, std::int64_t first_token, std::int64_t num_tokens,
                        T* weight_gradient, std::int64_t num_rows, std::int64_t channels);

// Row r uses position (rows.first_row + r) % rows.sequence_length.
template <typename T>
void position_dropout_forward(const T* x, const T* positions, T* y, const RowMasks& masks, const TokenRows& rows,
                              std::int64_t num_rows, std::int64_t channels);

template <typename T>
void position_dropout_backward(const T* dy, T* dx, T* position_gradient, const RowMasks& masks, const TokenRows& rows,
                               std::int64_t num_rows, std::int64_t channels);

}  // namespace potato::cpu
