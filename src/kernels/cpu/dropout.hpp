// CPU back end of kernels/dropout.hpp, and the mask of one row.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "potato/core/error.hpp"
#include "potato/core/philox.hpp"
#include "potato/kernels/tokens.hpp"

namespace potato::cpu {

// The masks of an activation's rows, ready for a task: a pure function of the logical token and the channel.
struct RowMasks {
  bool is_on = false;  // p > 0
  std::uint32_t threshold = 0;
  double scale = 1;  // 1 / (1 − p)
  PhiloxKey key;
  TokenRows rows;
};

// Checks the rows against the fields of the counter; throws Error where they do not fit.
inline RowMasks row_masks(const Dropout& dropout, const TokenRows& rows, std::int64_t num_rows, std::int64_t channels) {
  RowMasks masks;
  if (dropout.p == 0) return masks;
  PC_CHECK(rows.sequence_length > 0 && rows.first_row >= 0, "sequence length ", rows.sequence_length, ", first row ",
           rows.first_row);
  check_philox_ranges(
      rows.first_sample + static_cast<std::uint64_t>((rows.first_row + num_rows) / rows.sequence_length),
      static_cast<std::uint64_t>(rows.sequence_length), static_cast<std::uint64_t>(channels));
  masks.is_on = true;
  masks.threshold = dropout_threshold(dropout.p);
  masks.scale = 1 / (1 - dropout.p);
  masks.key = dropout.key;
  masks.rows = rows;
  return masks;
}

// Channels of a row that fill_mask makes at a time.
constexpr std::int64_t mask_channels = 64;

// bits[i] = word i % 4 of block `counter` + i / 4 (counted in word 0), for i in [0, mask_channels).
inline void philox_run(PhiloxBlock counter, PhiloxKey key, std::uint32_t* bits) {
#if defined(__AVX2__)
  // Four blocks at once: each 64-bit lane holds one word of one block in its low half. The high halves are never read,
  // since the product takes the low ones only. (Compilers vectorise philox4x32 to four times as many instructions.)
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53);
  const __m256i m1 = _mm256_set1_epi64x(0xCD9E8D57);
  for (int group = 0; group < mask_channels / 16; ++group) {
    __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x(counter[0] + 4LL * group), _mm256_set_epi64x(3, 2, 1, 0));
    __m256i c1 = _mm256_set1_epi64x(counter[1]);
    __m256i c2 = _mm256_set1_epi64x(counter[2]);
    __m256i c3 = _mm256_set1_epi64x(counter[3]);
    PhiloxKey k = key;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const __m256i p0 = _mm256_mul_epu32(c0, m0);
      const __m256i p1 = _mm256_mul_epu32(c2, m1);
      c0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1, _mm256_set1_epi64x(k.k0)));
      c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3, _mm256_set1_epi64x(k.k1)));
      c1 = p1;
      c3 = p0;
      k.k0 += 0x9E3779B9;
      k.k1 += 0xBB67AE85;
    }
    const __m256i words01 = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
    const __m256i words23 = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(words01, words23);  // blocks 0 and 2
    const __m256i odd = _mm256_unpackhi_epi64(words01, words23);   // blocks 1 and 3
    auto* out = reinterpret_cast<__m256i*>(bits + 16 * group);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
#else
  for (std::uint32_t b = 0; b < mask_channels / 4; ++b) {
    const PhiloxBlock block = philox4x32({counter[0] + b, counter[1], counter[2], counter[3]}, key);
    for (std::size_t word = 0; word < 4; ++word) bits[4 * b + word] = block[word];
  }
#endif
}

// mask[i] = scale where channel `first_channel` + i of local row `row` is kept, else 0, for i in [0, mask_channels).
// first_channel is a multiple of 4. Only for masks that are on.
template <typename T>
inline void fill_mask(const RowMasks& masks, std::int64_t row, std::int64_t first_channel, T* mask) {
  const std::int64_t token = masks.rows.first_row + row;
  const std::uint64_t sample = masks.rows.first_sample + static_cast<std::uint64_t>(token / masks.rows.sequence_length);
  const auto position = static_cast<std::uint32_t>(token % masks.rows.sequence_length);
  std::uint32_t bits[mask_channels];
  philox_run(philox_counter(RandomDomain::dropout, sample, position, static_cast<std::uint64_t>(first_channel)),
             masks.key, bits);
  const std::uint32_t threshold = masks.threshold;
  const T scale = static_cast<T>(masks.scale);
#pragma omp simd
  for (std::int64_t i = 0; i < mask_channels; ++i) mask[i] = bits[i] >= threshold ? scale : T{0};
}

// y = residual + dropout(x + bias).
template <typename T>
void bias_dropout_add_forward(const T* x, const T* bias, const T* residual, T* y, const RowMasks& masks,
                              std::int64_t num_rows, std::int64_t channels);

// The bias gradient is summed over the rows from zero and then added once.
template <typename T>
void bias_dropout_add_backward(const T* dy, T* dx, T* bias_gradient, const RowMasks& masks, std::int64_t num_rows,
                               std::int64_t channels);

}  // namespace potato::cpu
