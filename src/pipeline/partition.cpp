#include "potato/pipeline/partition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "potato/core/error.hpp"

namespace potato {

namespace {

// The cost of parts as a function of their first layer and the one behind their last.
struct PartCosts {
  std::vector<double> prefix;  // [num_layers + 1]: cost of the layers before
  double first_cost, last_cost;
  int num_parts;

  double operator()(int part, std::size_t begin, std::size_t end) const {
    return prefix[end] - prefix[begin] + (part == 0 ? first_cost : 0) + (part == num_parts - 1 ? last_cost : 0);
  }
};

// The best way to cut layers [begin, num_layers) into parts [part, num_parts), for every part and begin.
struct Table {
  std::vector<std::vector<double>> best;      // [num_parts + 1][num_layers + 1]; infinite: impossible
  std::vector<std::vector<std::size_t>> end;  // the same shape: where the first of those parts ends
};

// join(part, begin, end, best of the rest) is the value of a choice; the least wins, the smaller part where equal.
template <typename Join>
Table solve(int num_parts, std::size_t num_layers, const Join& join) {
  constexpr double impossible = std::numeric_limits<double>::infinity();
  const auto num_rows = static_cast<std::size_t>(num_parts) + 1;
  Table table{std::vector(num_rows, std::vector<double>(num_layers + 1, impossible)),
              std::vector(num_rows, std::vector<std::size_t>(num_layers + 1, num_layers))};
  table.best.back()[num_layers] = 0;
  for (int part = num_parts - 1; part >= 0; --part) {
    const auto row = static_cast<std::size_t>(part);
    for (std::size_t begin = 0; begin < num_layers; ++begin) {
      for (std::size_t end = begin + 1; end <= num_layers; ++end) {
        const double value = join(part, begin, end, table.best[row + 1][end]);
        if (value >= table.best[row][begin]) continue;
        table.best[row][begin] = value;
        table.end[row][begin] = end;
      }
    }
  }
  return table;
}

}  // namespace

std::vector<std::int64_t> partition_layers(const std::vector<double>& layer_costs, double first_cost, double last_cost,
                                           int num_parts) {
  PC_CHECK(num_parts >= 1, "num_parts = ", num_parts);
  const auto is_cost = [](double cost) { return std::isfinite(cost) && cost >= 0; };
  PC_CHECK(is_cost(first_cost) && is_cost(last_cost) && std::ranges::all_of(layer_costs, is_cost),
           "costs have to be finite and not negative");
  const std::size_t num_layers = layer_costs.size();
  if (num_layers < static_cast<std::size_t>(num_parts)) {
    throw ConfigError(cat("model.num_layers = ", num_layers,
                          " is too few for parallel.pipeline x "
                          "parallel.virtual_chunks = ",
                          num_parts, " parts, each of which needs at least one layer; use at least ", num_parts,
                          " layers or fewer stages and chunks."));
  }
  PartCosts cost{std::vector<double>(num_layers + 1), first_cost, last_cost, num_parts};
  for (std::size_t i = 0; i < num_layers; ++i) cost.prefix[i + 1] = cost.prefix[i] + layer_costs[i];

  const Table by_cost = solve(num_parts, num_layers, [&](int part, std::size_t begin, std::size_t end, double rest) {
    return std::max(cost(part, begin, end), rest);
  });
  // Equal costs may differ in their last bits, as differences of prefix sums.
  const double limit = by_cost.best[0][0] * (1 + 1e-12);
  const Table by_count = solve(num_parts, num_layers, [&](int part, std::size_t begin, std::size_t end, double rest) {
    const auto count = static_cast<double>(end - begin);
    return cost(part, begin, end) <= limit ? count * count + rest : std::numeric_limits<double>::infinity();
  });

  std::vector<std::int64_t> boundaries{0};
  for (int part = 0; part < num_parts; ++part) {
    boundaries.push_back(static_cast<std::int64_t>(
        by_count.end[static_cast<std::size_t>(part)][static_cast<std::size_t>(boundaries.back())]));
  }
  return boundaries;
}

}  // namespace potato
