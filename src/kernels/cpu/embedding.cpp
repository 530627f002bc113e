// Forward is split by rows. Backward is split by columns (see for_column_tiles): each row is added to its row of the
// gradient at once, rows ascending. Elements moved: embedding 2 forward and 3 backward, positions 3 and 4.
#include "embedding.hpp"

#include <algorithm>
#include <cstring>

#include "elementwise.hpp"
#include "potato/core/half.hpp"

namespace potato::cpu {

template <typename T>
void embedding_forward(const std::int32_t* tokens, const T* weight, std::int64_t first_token, std::int64_t num_tokens,
                       T* y, std::int64_t num_rows, std::int64_t channels) {
  const auto row_bytes = static_cast<std::size_t>(channels) * sizeof(T);
#pragma omp parallel for schedule(static) if (num_rows * channels > min_parallel_elems)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::int64_t token = tokens[r] - first_token;
    if (token >= 0 && token < num_tokens) {
      std::memcpy(y + r * channels, weight + token * channels, row_bytes);
    } else {
      std::fill_n(y + r * channels, channels, T{});
    }
  }
}

template <typename T>
void embedding_backward(const std::int32_t* tokens, const T* dy, std::int64_t first_token, std::int64_t num_tokens,
                        T* weight_gradient, std::int64_t num_rows, std::int64_t channels) {
  for_column_tiles(channels, num_rows * channels > min_parallel_elems, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const std::int64_t token = tokens[r] - first_token;
      if (token < 0 || token >= num_tokens) continue;
      const T* from = dy + r * channels;
      T* to = weight_gradient + token * channels;
#pragma omp simd
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

template <typename T>
void position_dropout_forward(const T* x, const T* positions, T* y, const RowMasks& masks, const TokenRows& rows,
                              std::int64_t num_rows, std::int64_t channels) {
#pragma omp parallel for schedule(static) if (num_rows * channels > min_parallel_compute_elems)
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::int64_t row = r * channels;
    const T* position = positions + (rows.first_row + r) % rows.sequence_length * channels;
    T mask[mask_channels];
    std::fill_n(mask, mask_channels, T{1});
    for (std::int64_t begin = 0; begin < channels; begin += mask_channels) {
      if (masks.is_on) fill_mask(masks, r, begin, mask);
      const std::int64_t width = std::min(mask_channels, channels - begin);
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) {
        y[row + begin + c] = (x[row + begin + c] + position[begin + c]) * mask[c];
      }
    }
  }
}

template <typename T>
void position_dropout_backward(const T* dy, T* dx, T* position_gradient, const RowMasks& masks, const TokenRows& rows,
                               std::int64_t num_rows, std::int64_t channels) {
  const bool parallel = num_rows * channels > min_parallel_compute_elems;
  for_column_tiles(channels, parallel, [=](std::int64_t begin, std::int64_t end) {
    T mask[mask_channels];
    std::fill_n(mask, mask_channels, T{1});
    for (std::int64_t r = 0; r < num_rows; ++r) {
      T* position = position_gradient + (rows.first_row + r) % rows.sequence_length * channels;
      for (std::int64_t part = begin; part < end; part += mask_channels) {
        if (masks.is_on) fill_mask(masks, r, part, mask);
        const std::int64_t width = std::min(mask_channels, end - part);
        const std::int64_t first = r * channels + part;
#pragma omp simd
        for (std::int64_t c = 0; c < width; ++c) {
          const T gradient = dy[first + c] * mask[c];
          dx[first + c] = gradient;
          position[part + c] += gradient;
        }
      }
    }
  });
}

#define POTATO_INSTANTIATE(T)                                                                                     \
  template void embedding_backward(const std::int32_t*, const T*, std::int64_t, std::int64_t, T*, std::int64_t,   \
                                   std::int64_t);                                                                 \
  template void position_dropout_forward(const T*, const T*, T*, const RowMasks&, const TokenRows&, std::int64_t, \
                                         std::int64_t);                                                           \
  template void position_dropout_backward(const T*, T*, T*, const RowMasks&, const TokenRows&, std::int64_t,      \
                                          std::int64_t);
POTATO_INSTANTIATE(float)
POTATO_INSTANTIATE(double)
#undef POTATO_INSTANTIATE

// Rows are only copied, so that 16-bit ones need no widening.
#define POTATO_INSTANTIATE(T)                                                                                  \
  template void embedding_forward(const std::int32_t*, const T*, std::int64_t, std::int64_t, T*, std::int64_t, \
                                  std::int64_t);
POTATO_INSTANTIATE(float)
POTATO_INSTANTIATE(double)
POTATO_INSTANTIATE(BFloat16)
POTATO_INSTANTIATE(Float16)
#undef POTATO_INSTANTIATE

}  // namespace potato::cpu
