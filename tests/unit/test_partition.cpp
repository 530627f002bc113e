// Partition of layers: every layer once, and the largest part as small as it can be.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "potato/core/error.hpp"
#include "potato/pipeline/partition.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

using Boundaries = std::vector<std::int64_t>;

double largest_part(const std::vector<double>& costs, double first, double last, const Boundaries& boundaries) {
  double largest = 0;
  for (std::size_t p = 0; p + 1 < boundaries.size(); ++p) {
    double sum = (p == 0 ? first : 0) + (p + 2 == boundaries.size() ? last : 0);
    for (auto i = boundaries[p]; i < boundaries[p + 1]; ++i) sum += costs[static_cast<std::size_t>(i)];
    largest = std::max(largest, sum);
  }
  return largest;
}

std::int64_t squares(const Boundaries& boundaries) {
  std::int64_t sum = 0;
  for (std::size_t p = 0; p + 1 < boundaries.size(); ++p) {
    sum += (boundaries[p + 1] - boundaries[p]) * (boundaries[p + 1] - boundaries[p]);
  }
  return sum;
}

// Calls visit for every way to cut the layers into parts of at least one, in lexicographic order.
template <typename Visit>
void for_each_partition(Boundaries& prefix, std::int64_t num_layers, int num_parts, const Visit& visit) {
  if (num_parts == 1) {
    prefix.push_back(num_layers);
    visit(prefix);
    prefix.pop_back();
    return;
  }
  for (std::int64_t end = prefix.back() + 1; end <= num_layers - num_parts + 1; ++end) {
    prefix.push_back(end);
    for_each_partition(prefix, num_layers, num_parts - 1, visit);
    prefix.pop_back();
  }
}

}  // namespace

TEST_CASE("case-16: 30 layers on 4 stages are all trained, each exactly once", "[partition]") {
  const std::vector<double> costs(30, 1.0);
  CHECK(partition_layers(costs, 0, 0, 4) == Boundaries{0, 7, 14, 22, 30});
  // A head as costly as three layers: the last stage has three fewer.
  CHECK(partition_layers(costs, 0, 3, 4) == Boundaries{0, 8, 16, 24, 30});
  for (int num_parts = 1; num_parts <= 30; ++num_parts) {
    const Boundaries boundaries = partition_layers(costs, 0.5, 2.5, num_parts);
    REQUIRE(boundaries.size() == static_cast<std::size_t>(num_parts) + 1);
    std::vector<int> times(30, 0);
    for (std::size_t p = 0; p + 1 < boundaries.size(); ++p) {
      CHECK(boundaries[p] < boundaries[p + 1]);
      for (auto i = boundaries[p]; i < boundaries[p + 1]; ++i) ++times.at(static_cast<std::size_t>(i));
    }
    CHECK(times == std::vector<int>(30, 1));
  }
}

TEST_CASE("partitions are optimal, then even, then smaller at the start", "[partition]") {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> cost(0, 6);
  for (int trial = 0; trial < 300; ++trial) {
    const int num_layers = 1 + trial % 10;
    const int num_parts = 1 + static_cast<int>(random() % static_cast<unsigned>(num_layers));
    std::vector<double> costs(static_cast<std::size_t>(num_layers));
    for (double& layer_cost : costs) layer_cost = cost(random);
    const double first = cost(random);
    const double last = cost(random);
    Boundaries best;
    Boundaries prefix{0};
    for_each_partition(prefix, num_layers, num_parts, [&](const Boundaries& candidate) {
      if (best.empty()) best = candidate;
      const double a = largest_part(costs, first, last, candidate);
      const double b = largest_part(costs, first, last, best);
      if (a < b || (a == b && squares(candidate) < squares(best))) best = candidate;
    });
    INFO("trial " << trial);
    CHECK(partition_layers(costs, first, last, num_parts) == best);
  }
}

TEST_CASE("equal costs whose sums round differently still give even parts", "[partition]") {
  for (const double cost : {0.1, 1e9 / 3, 7e-12}) {
    CHECK(partition_layers(std::vector<double>(9, cost), 0, 0, 4) == Boundaries{0, 2, 4, 6, 9});
    CHECK(partition_layers(std::vector<double>(24, cost), 0, 0, 8) == Boundaries{0, 3, 6, 9, 12, 15, 18, 21, 24});
  }
}

TEST_CASE("partitions that cannot be are refused", "[partition]") {
  CHECK_THROWS_AS(partition_layers({1, 1, 1}, 0, 0, 4), ConfigError);
  CHECK_THROWS_WITH(partition_layers({1, 1, 1}, 0, 0, 4),
                    ContainsSubstring("model.num_layers = 3") && ContainsSubstring("at least 4"));
  CHECK_THROWS_AS(partition_layers({1}, 0, 0, 0), Error);
  CHECK_THROWS_AS(partition_layers({-1, 2}, 0, 0, 1), Error);
  CHECK_THROWS_AS(partition_layers({1}, std::numeric_limits<double>::infinity(), 0, 1), Error);
}
