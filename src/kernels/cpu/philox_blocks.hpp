// Several Philox blocks at once: eight lanes of AVX2 where there is one, else philox4x32 in a loop.
#pragma once

#include <cstdint>

#include "potato/core/philox.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace potato::cpu {

constexpr std::int64_t philox_lanes = 8;

#ifdef __AVX2__

// High and low halves of the eight products of 32-bit integers. Compilers find this in shuffles only.
inline void wide_product(__m256i a, __m256i factor, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

// out[4 · i + lane] = philox4x32({counter[0] + i, counter[1], counter[2], counter[3]}, key)[lane] for i < philox_lanes.
inline void philox_blocks(PhiloxBlock counter, PhiloxKey key, std::uint32_t* out) {
  const auto all = [](std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); };
  const __m256i m0 = all(0xD2511F53);
  const __m256i m1 = all(0xCD9E8D57);
  __m256i c0 = _mm256_add_epi32(all(counter[0]), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i c1 = all(counter[1]);
  __m256i c2 = all(counter[2]);
  __m256i c3 = all(counter[3]);
  for (int round = 0; round < 10; ++round) {
    __m256i high0, low0, high1, low1;
    wide_product(c0, m0, high0, low0);
    wide_product(c2, m1, high1, low1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), all(key.k0));
    c1 = low1;
    c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), all(key.k1));
    c3 = low0;
    key.k0 += 0x9E3779B9;
    key.k1 += 0xBB67AE85;
  }
  // Transpose to four integers a block.
  const __m256i low01 = _mm256_unpacklo_epi32(c0, c1);  // blocks 0, 1 | 4, 5
  const __m256i low23 = _mm256_unpacklo_epi32(c2, c3);
  const __m256i high01 = _mm256_unpackhi_epi32(c0, c1);  // blocks 2, 3 | 6, 7
  const __m256i high23 = _mm256_unpackhi_epi32(c2, c3);
  const __m256i blocks04 = _mm256_unpacklo_epi64(low01, low23);
  const __m256i blocks15 = _mm256_unpackhi_epi64(low01, low23);
  const __m256i blocks26 = _mm256_unpacklo_epi64(high01, high23);
  const __m256i blocks37 = _mm256_unpackhi_epi64(high01, high23);
  auto* store = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(store, _mm256_permute2x128_si256(blocks04, blocks15, 0x20));
  _mm256_storeu_si256(store + 1, _mm256_permute2x128_si256(blocks26, blocks37, 0x20));
  _mm256_storeu_si256(store + 2, _mm256_permute2x128_si256(blocks04, blocks15, 0x31));
  _mm256_storeu_si256(store + 3, _mm256_permute2x128_si256(blocks26, blocks37, 0x31));
}

#else

inline void philox_blocks(PhiloxBlock counter, PhiloxKey key, std::uint32_t* out) {
  for (std::uint32_t i = 0; i < philox_lanes; ++i) {
    const PhiloxBlock block = philox4x32({counter[0] + i, counter[1], counter[2], counter[3]}, key);
    for (std::size_t lane = 0; lane < 4; ++lane) out[4 * i + lane] = block[lane];
  }
}

#endif

}  // namespace potato::cpu
