#include <cmath>
#include <set>

#include "potato/core/philox.hpp"
#include "support/catch.hpp"

using namespace potato;

TEST_CASE("Philox4x32-10 gives the published vectors", "[philox]") {
  // Known answers of the Random123 distribution (kat_vectors).
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("portable normals have the right value and moments", "[philox]") {
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const std::uint32_t a = i * 2147483u + 17u, b = i * 104729u * 977u;
    const double u = (a + 1.0) / 4294967296.0, v = b / 4294967296.0;
    CHECK(normal_from_u32(a, b) == Approx(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v)).margin(1e-13));
  }
  const PhiloxKey key = philox_key(7, "weights");
  double sum = 0, squares = 0;
  constexpr int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = normal_at(key, static_cast<std::uint64_t>(i / 500), static_cast<std::uint64_t>(i % 500));
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(squares / n == Approx(1).epsilon(0.02));
}

TEST_CASE("permuted_index is a permutation that changes with the epoch", "[philox]") {
  const PhiloxKey key = philox_key(3, "order");
  for (const std::uint64_t n : {1ULL, 2ULL, 3ULL, 5ULL, 64ULL, 1000ULL}) {
    std::set<std::uint64_t> seen;
    std::uint64_t same = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      seen.insert(permuted_index(key, 0, i, n));
      same += permuted_index(key, 0, i, n) == permuted_index(key, 1, i, n);
    }
    CHECK(seen.size() == n);
    CHECK(*seen.rbegin() == n - 1);
    if (n == 1000) CHECK(same < 20);
  }
}
