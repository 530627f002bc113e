// One rank's results, and how a grid's are checked against them.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "combination.hpp"
#include "compare.hpp"
#include "support/catch.hpp"

namespace potato::test {

// One rank's result, made on rank 0 and remembered.
inline const RunResult& oracle(const Combination& c) {
  static std::map<std::pair<std::int64_t, Precision>, RunResult> known;
  const auto key = std::make_pair(layers_of(c), c.precision);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  Config config = config_of(c);
  config.parallel = small_config().parallel;
  config.train.recompute = Recompute::none;
  config.train.micro_batch_size = 4;
  return known[key] = train(config, MPI_COMM_SELF);
}

inline int world_size() {
  int num_ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  return num_ranks;
}

// Trains `config` on the grid of `c` and compares with one rank's run of `c`. Collective.
inline void check_against_oracle(const Config& config, const Combination& c, const std::string& name) {
  const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
  if (ranks.get() == MPI_COMM_NULL) return;
  const RunResult result = train(config, ranks.get());
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) return;
  const Difference d = difference(result, oracle(c));
  const double tolerance = c.precision == fp64 ? 1e-9 : 2e-4;
  INFO(name << ": loss " << d.loss << " norm " << d.norm << " weight " << d.weight << " (" << d.worst_tensor
            << ") key bias " << d.key_bias);
  CHECK(d.loss <= tolerance);
  CHECK(d.norm <= tolerance);
  CHECK(d.weight <= tolerance);
  CHECK(d.key_bias <= (c.precision == fp64 ? 1e-8 : 1e-2));
  if (!(d.loss <= tolerance && d.norm <= tolerance && d.weight <= tolerance)) {
    std::fprintf(stderr, "%s: loss %.2e norm %.2e weight %.2e (%s)\n", name.c_str(), d.loss, d.norm, d.weight,
                 d.worst_tensor.c_str());
  }
}

inline void check_combination(const Combination& c) { check_against_oracle(config_of(c), c, name_of(c)); }

}  // namespace potato::test
