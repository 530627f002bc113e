// The register tile that the fp64 product and attention are built from, and scratch memory of a thread.
#pragma once

#include <cstdint>
#include <vector>

namespace potato::cpu {

constexpr std::int64_t tile_rows = 6;
// Columns of a tile: two vectors of 32 bytes, so that 12 accumulators, 2 of B and 1 of A fit the 16 registers of AVX2.
template <typename T>
inline constexpr std::int64_t tile_columns = 64 / static_cast<std::int64_t>(sizeof(T));

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// c[m, n] = (accumulate ? c[m, n] : 0) + sum over k ascending of a[m, k] · b[k, n] for one tile; each element is one
// chain of additions. a[m, k] lies at a[m · a_row + k · a_k], b[k, n] at b[k · b_k + n], c[m, n] at c[m · c_row + n].
template <bool accumulate, typename T>
inline void multiply_tile(std::int64_t num_k, const T* a, std::int64_t a_row, std::int64_t a_k, const T* b,
                          std::int64_t b_k, T* c, std::int64_t c_row) {
  typedef T Vector __attribute__((vector_size(32), aligned(alignof(T)), may_alias));
  constexpr std::int64_t lanes = tile_columns<T> / 2;
  Vector sum[tile_rows][2];
#pragma GCC unroll 6
  for (int m = 0; m < tile_rows; ++m) {
    if constexpr (accumulate) {
      sum[m][0] = *reinterpret_cast<const Vector*>(c + m * c_row);
      sum[m][1] = *reinterpret_cast<const Vector*>(c + m * c_row + lanes);
    } else {
      sum[m][0] = Vector{};
      sum[m][1] = Vector{};
    }
  }
  for (std::int64_t k = 0; k < num_k; ++k) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b);
    const Vector b1 = *reinterpret_cast<const Vector*>(b + lanes);
#pragma GCC unroll 6
    for (int m = 0; m < tile_rows; ++m) {
      const T factor = a[m * a_row];
      sum[m][0] += factor * b0;
      sum[m][1] += factor * b1;
    }
    a += a_k;
    b += b_k;
  }
#pragma GCC unroll 6
  for (int m = 0; m < tile_rows; ++m) {
    *reinterpret_cast<Vector*>(c + m * c_row) = sum[m][0];
    *reinterpret_cast<Vector*>(c + m * c_row + lanes) = sum[m][1];
  }
}

// Memory of this thread that only grows; aligned to 64 bytes. The next call may move it.
template <typename T>
T* thread_scratch(std::int64_t num_elems) {
  static thread_local std::vector<T> memory;
  constexpr std::uintptr_t alignment_bytes = 64;
  const auto needed = static_cast<std::size_t>(num_elems) + alignment_bytes / sizeof(T);
  if (memory.size() < needed) memory.resize(needed);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t skip_bytes = (alignment_bytes - address % alignment_bytes) % alignment_bytes;
  return memory.data() + skip_bytes / sizeof(T);
}

}  // namespace potato::cpu
