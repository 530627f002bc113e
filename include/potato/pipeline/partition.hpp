// Balanced, contiguous partition of layers among (virtual) pipeline stages.
#pragma once

#include <cstdint>
#include <vector>

namespace potato {

// Returns num_parts + 1 boundaries b with b[0] = 0 and b[num_parts] = layer_costs.size(): part p has the layers
// b[p] <= layer < b[p + 1], at least one. The cost of a part is the sum over its layers, plus first_cost (embedding) in
// the first part and last_cost (head and loss) in the last; any unit, finite and not negative. The largest cost of a
// part is minimal. Among such partitions the counts are as even as possible (least sum of squares), then the earlier
// parts are the smaller ones, since early stages keep the most micro-batches alive. Pure arithmetic: every rank that
// calls it gets the same answer. Time O(num_parts * layers^2). Throws ConfigError where there are fewer layers than
// parts.
std::vector<std::int64_t> partition_layers(const std::vector<double>& layer_costs, double first_cost, double last_cost,
                                           int num_parts);

}  // namespace potato
