// CPU back end of kernels/elementwise.hpp, and how column sums are split between threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace potato::cpu {

// Below this many elements a loop that only moves memory stays on one thread.
constexpr std::int64_t min_parallel_elems = 65536;
// The same for loops that compute much for each element.
constexpr std::int64_t min_parallel_compute_elems = 8192;

// Most columns a thread handles in one sweep over the rows; bounds its accumulators on the stack.
constexpr std::int64_t max_tile_columns = 1024;

// Calls body(begin, end) for ranges of columns that together are [0, num_columns), each at most max_tile_columns wide
// and beginning at a multiple of 16; every thread owns contiguous columns. A column is handled by one thread alone, so
// what it sums over rows does not depend on the number of threads, nor on the other columns.
template <typename Body>
void for_column_tiles(std::int64_t num_columns, bool parallel, const Body& body) {
  constexpr std::int64_t unit = 16;
  const std::int64_t num_units = (num_columns + unit - 1) / unit;
#pragma omp parallel if (parallel)
  {
    const std::int64_t thread = omp_get_thread_num();
    const std::int64_t num_threads = omp_get_num_threads();
    const std::int64_t end = std::min(num_units * (thread + 1) / num_threads * unit, num_columns);
    for (std::int64_t tile = num_units * thread / num_threads * unit; tile < end; tile += max_tile_columns) {
      body(tile, std::min(tile + max_tile_columns, end));
    }
  }
}

// x[i] = value. T is any floating-point type, also a stored 16-bit one.
template <typename T>
void fill(T* x, T value, std::int64_t num_elems);

// destination = source; no overlap.
void copy(const void* source, void* destination, std::int64_t num_bytes);

// y[i] = x[i], rounded to nearest even. From and To are float, BFloat16 or Float16, or double and float.
template <typename From, typename To>
void convert(const From* x, To* y, std::int64_t num_elems);

// y[i] += x[i].
template <typename T>
void add_to(const T* x, T* y, std::int64_t num_elems);

// *result += weight · sum of x², in fp64: blocks of 16,384 elements, whose sums are added in ascending order.
template <typename T>
void add_squared_norm(const T* x, double weight, double* result, std::int64_t num_elems);

}  // namespace potato::cpu
