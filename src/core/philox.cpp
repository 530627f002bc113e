// Compiled without floating-point contraction (see CMakeLists.txt): the normals must be bitwise portable.
#include "potato/core/philox.hpp"

#include <bit>
#include <cmath>
#include <numbers>

#include "potato/core/error.hpp"
#include "potato/core/hash.hpp"

namespace potato {

namespace {

// Lanes of a block and of its twin give the two integers that a normal needs; no sample number reaches this bit.
constexpr std::uint32_t normal_twin_bit = 0x00800000U;

// ln(x) for x in (0, 1]: x = m · 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m − 1) / (m + 1)) by its series.
double portable_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > std::numbers::sqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double z = (m - 1) / (m + 1);
  const double z2 = z * z;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * z2 + 1.0 / k;
  return 2 * z * sum + exponent * std::numbers::ln2;
}

// cos(2πu) for u in [0, 1) by quadrant reduction and Taylor series on [−π/4, π/4].
double portable_cos_turn(double u) {
  const double quarter = u * 4;
  const int quadrant = static_cast<int>(quarter + 0.5);
  const double angle = (quarter - quadrant) * (std::numbers::pi / 2);
  const double a2 = angle * angle;
  double cosine = 0;
  double sine = 0;
  for (int k = 18; k >= 2; k -= 2) cosine = (1 + cosine) * (-a2 / ((k - 1) * k));
  for (int k = 19; k >= 3; k -= 2) sine = (1 + sine) * (-a2 / ((k - 1) * k));
  cosine += 1;
  sine = angle * (1 + sine);
  switch (quadrant & 3) {
    case 0:
      return cosine;
    case 1:
      return -sine;
    case 2:
      return -cosine;
    default:
      return sine;
  }
}

}  // namespace

PhiloxKey philox_key(std::uint64_t seed, std::string_view name) {
  const std::uint64_t mixed = mix64(seed ^ mix64(hash_name(name)));
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

void check_philox_ranges(std::uint64_t max_sample, std::uint64_t max_position, std::uint64_t max_channel) {
  PC_CHECK(max_sample < (1ULL << 56), "sample number ", max_sample, " needs more than 56 bits");
  PC_CHECK(max_position < (1ULL << 32), "position ", max_position, " needs more than 32 bits");
  PC_CHECK(max_channel < (1ULL << 34), "channel ", max_channel, " needs more than 34 bits");
}

double normal_from_u32(std::uint32_t a, std::uint32_t b) {
  const double u = (a + 1.0) * 0x1.0p-32;  // (0, 1]
  return std::sqrt(-2 * portable_log(u)) * portable_cos_turn(uniform_from_u32(b));
}

template <typename T>
void normal_row(PhiloxKey key, std::uint64_t row, std::uint64_t first_column, std::int64_t count, double std_dev,
                T* values) {
  for (std::int64_t i = 0; i < count;) {
    const std::uint64_t column = first_column + static_cast<std::uint64_t>(i);
    const PhiloxBlock counter = philox_counter(RandomDomain::init, row >> 32, static_cast<std::uint32_t>(row), column);
    PhiloxBlock twin = counter;
    twin[3] |= normal_twin_bit;
    const PhiloxBlock a = philox4x32(counter, key);
    const PhiloxBlock b = philox4x32(twin, key);
    for (std::size_t lane = column & 3; lane < 4 && i < count; ++lane, ++i) {
      values[i] = static_cast<T>(std_dev * normal_from_u32(a[lane], b[lane]));
    }
  }
}

template void normal_row(PhiloxKey, std::uint64_t, std::uint64_t, std::int64_t, double, float*);
template void normal_row(PhiloxKey, std::uint64_t, std::uint64_t, std::int64_t, double, double*);

double normal_at(PhiloxKey key, std::uint64_t row, std::uint64_t column) {
  double value = 0;
  normal_row(key, row, column, 1, 1.0, &value);
  return value;
}

std::uint32_t dropout_threshold(double p) {
  PC_CHECK(p >= 0 && p < 1, "dropout probability ", p);
  return static_cast<std::uint32_t>(p * 0x1.0p32);
}

std::uint64_t permuted_index(PhiloxKey key, std::uint64_t epoch, std::uint64_t index, std::uint64_t n) {
  PC_CHECK(index < n, "index ", index, " of ", n);
  int half_bits = 1;
  while (half_bits < 32 && (1ULL << (2 * half_bits)) < n) ++half_bits;
  const std::uint64_t mask = (1ULL << half_bits) - 1;
  std::uint64_t value = index;
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const PhiloxBlock block = philox4x32({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch),
                                            (static_cast<std::uint32_t>(RandomDomain::order) << 24) |
                                                static_cast<std::uint32_t>((epoch >> 32) & 0xFFFFFF)},
                                           key);
      const std::uint64_t next = left ^ (block[0] & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= n);
  return value;
}

}  // namespace potato
