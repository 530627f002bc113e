// Flat loops at memory bandwidth: fill writes 1, copy and convert move 2, add_to 3, add_squared_norm reads 1 element
// each.
#include "elementwise.hpp"

#include <cstring>

#include "potato/core/half.hpp"

namespace potato::cpu {

namespace {

// Sum of squares in 32 fp64 accumulators, one for each i % 32: the order depends on num_elems alone.
template <typename T>
double block_squared_norm(const T* x, std::int64_t num_elems) {
  typedef double Lanes __attribute__((vector_size(32)));
  Lanes sums[8] = {};
  std::int64_t i = 0;
  for (; i + 32 <= num_elems; i += 32) {
#pragma GCC unroll 8
    for (int part = 0; part < 8; ++part) {
      const T* p = x + i + 4 * part;
      const Lanes lanes = {p[0], p[1], p[2], p[3]};  // becomes one converting load
      sums[part] += lanes * lanes;
    }
  }
  double rest = 0;
  for (; i < num_elems; ++i) rest += static_cast<double>(x[i]) * x[i];
  const Lanes sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  return (sum[0] + sum[1]) + (sum[2] + sum[3]) + rest;
}

}  // namespace

template <typename T>
void fill(T* x, T value, std::int64_t num_elems) {
#pragma omp parallel for simd schedule(static) if (parallel : num_elems > min_parallel_elems)
  for (std::int64_t i = 0; i < num_elems; ++i) x[i] = value;
}

void copy(const void* source, void* destination, std::int64_t num_bytes) {
  constexpr std::int64_t piece_bytes = 65536;
  const std::int64_t num_pieces = (num_bytes + piece_bytes - 1) / piece_bytes;
#pragma omp parallel for schedule(static) if (num_pieces > 4)
  for (std::int64_t piece = 0; piece < num_pieces; ++piece) {
    const std::int64_t begin = piece * piece_bytes;
    std::memcpy(static_cast<char*>(destination) + begin, static_cast<const char*>(source) + begin,
                static_cast<std::size_t>(std::min(piece_bytes, num_bytes - begin)));
  }
}

template <typename From, typename To>
void convert(const From* x, To* y, std::int64_t num_elems) {
#pragma omp parallel for simd schedule(static) if (parallel : num_elems > min_parallel_elems)
  for (std::int64_t i = 0; i < num_elems; ++i) y[i] = To(static_cast<Compute<To>>(static_cast<Compute<From>>(x[i])));
}

template <typename T>
void add_to(const T* x, T* y, std::int64_t num_elems) {
#pragma omp parallel for simd schedule(static) if (parallel : num_elems > min_parallel_elems)
  for (std::int64_t i = 0; i < num_elems; ++i) y[i] += x[i];
}

template <typename T>
void add_squared_norm(const T* x, double weight, double* result, std::int64_t num_elems) {
  constexpr std::int64_t block_elems = 16384;
  constexpr std::int64_t max_blocks = 256;  // at a time, so that their sums fit on the stack
  double sums[max_blocks];
  double total = 0;
  for (std::int64_t begin = 0; begin < num_elems; begin += max_blocks * block_elems) {
    const std::int64_t num_blocks = std::min(max_blocks, (num_elems - begin + block_elems - 1) / block_elems);
#pragma omp parallel for schedule(static) if (num_blocks > 4)
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const std::int64_t first = begin + block * block_elems;
      sums[block] = block_squared_norm(x + first, std::min(block_elems, num_elems - first));
    }
    for (std::int64_t block = 0; block < num_blocks; ++block) total += sums[block];
  }
  *result += weight * total;
}

template void fill(float*, float, std::int64_t);
template void fill(double*, double, std::int64_t);
template void fill(BFloat16*, BFloat16, std::int64_t);
template void fill(Float16*, Float16, std::int64_t);
template void convert(const float*, double*, std::int64_t);
template void convert(const double*, float*, std::int64_t);
template void convert(const float*, BFloat16*, std::int64_t);
template void convert(const float*, Float16*, std::int64_t);
template void convert(const BFloat16*, float*, std::int64_t);
template void convert(const BFloat16*, Float16*, std::int64_t);
template void convert(const Float16*, float*, std::int64_t);
template void convert(const Float16*, BFloat16*, std::int64_t);
template void add_to(const float*, float*, std::int64_t);
template void add_to(const double*, double*, std::int64_t);
template void add_squared_norm(const float*, double, double*, std::int64_t);
template void add_squared_norm(const double*, double, double*, std::int64_t);

}  // namespace potato::cpu
