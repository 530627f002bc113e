// Counter-based random numbers: nothing random depends on the process grid, and no RNG state is ever kept.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
//
// Every number is a function of (seed, name, domain, sample, position, channel). The name (of a layer or tensor) and
// the seed make the key; the logical coordinates make the counter:
//   word 0: channel / 4      word 1: position      word 2: sample, low 32 bits
//   word 3: domain << 24 | sample, high 24 bits
// and the lane is channel % 4 whatever the alignment of a shard. Attention dropout uses channel = head·T + key
// position.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace potato {

enum class RandomDomain : std::uint8_t { init = 1, dropout = 2, order = 3, sampling = 4, test = 5 };

struct PhiloxKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

using PhiloxBlock = std::array<std::uint32_t, 4>;

// One block of four independent uniform 32-bit integers.
inline PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  constexpr std::uint64_t m0 = 0xD2511F53;
  constexpr std::uint64_t m1 = 0xCD9E8D57;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = m0 * counter[0];
    const std::uint64_t p1 = m1 * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key.k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key.k1, static_cast<std::uint32_t>(p0)};
    key.k0 += 0x9E3779B9;
    key.k1 += 0xBB67AE85;
  }
  return counter;
}

// The key of everything random that belongs to `name` under `seed`.
PhiloxKey philox_key(std::uint64_t seed, std::string_view name);

// The counter of the block that holds `channel`. Widths are checked once per tensor by check_philox_ranges.
inline PhiloxBlock philox_counter(RandomDomain domain, std::uint64_t sample, std::uint32_t position,
                                  std::uint64_t channel) {
  return {static_cast<std::uint32_t>(channel >> 2), position, static_cast<std::uint32_t>(sample),
          (static_cast<std::uint32_t>(domain) << 24) | static_cast<std::uint32_t>(sample >> 32)};
}

// Throws Error unless all coordinates up to the given maxima fit their fields (sample < 2^56, position < 2^32,
// channel < 2^34).
void check_philox_ranges(std::uint64_t max_sample, std::uint64_t max_position, std::uint64_t max_channel);

// The 32-bit integer at the given coordinates.
inline std::uint32_t philox_u32(PhiloxKey key, RandomDomain domain, std::uint64_t sample, std::uint32_t position,
                                std::uint64_t channel) {
  return philox4x32(philox_counter(domain, sample, position, channel), key)[channel & 3];
}

// A uniform double in [0, 1) from one 32-bit integer, exact.
inline double uniform_from_u32(std::uint32_t bits) { return bits * 0x1.0p-32; }

// A standard normal from two 32-bit integers (Box-Muller, cosine branch), computed with our own polynomials in double
// so that it is bitwise the same on every machine and compiler.
double normal_from_u32(std::uint32_t a, std::uint32_t b);

// Standard normal of element (row, column) of the tensor that `key` belongs to.
double normal_at(PhiloxKey key, std::uint64_t row, std::uint64_t column);

// values[i] = std · normal_at(key, row, first_column + i), rounded once. T is float or double.
template <typename T>
void normal_row(PhiloxKey key, std::uint64_t row, std::uint64_t first_column, std::int64_t count, double std_dev,
                T* values);

// Dropout keeps an element where its 32-bit integer is >= this threshold; p in [0, 1).
std::uint32_t dropout_threshold(double p);

// A permutation of [0, n): the image of `index`, a pure function of (key, epoch). Feistel network over the next power
// of four with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); needs no memory.
std::uint64_t permuted_index(PhiloxKey key, std::uint64_t epoch, std::uint64_t index, std::uint64_t n);

}  // namespace potato
