// I1 on GPUs: every grid of ranks that share one GPU equals one CPU rank in fp32, and repeats bitwise.
#include <cstdio>
#include <map>

#include "combination.hpp"
#include "compare.hpp"
#include "potato/comm/gpu_topology.hpp"
#include "support/catch.hpp"

using namespace potato;
using namespace potato::test;

namespace {

// Sums run in another order on a GPU, and its exponentials differ in the last bit; Adam amplifies both.
constexpr double gpu_tolerance = 1e-3;

bool all_ranks_see_a_gpu() {
  int seen = num_visible_gpus();
  MPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (seen == 0) WARN("SKIPPED: no GPU is visible");
  return seen > 0;
}

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

Config gpu_config(const Combination& c) {
  Config config = config_of(c);
  config.precision.dtype = fp32;
  config.run.device = DeviceChoice::cuda;
  return config;
}

// One CPU rank in fp32, on rank 0.
const RunResult& cpu_oracle(const Combination& c) {
  static std::map<std::int64_t, RunResult> known;
  const auto found = known.find(layers_of(c));
  if (found != known.end()) return found->second;
  Config config = gpu_config(c);
  config.run.device = DeviceChoice::cpu;
  config.parallel = small_config().parallel;
  config.train.recompute = Recompute::none;
  config.train.micro_batch_size = 4;
  return known[layers_of(c)] = train(config, MPI_COMM_SELF);
}

}  // namespace

TEST_CASE("every grid of ranks on one GPU equals one CPU rank", "[.][gpu-oracle]") {
  if (!all_ranks_see_a_gpu()) return;
  int num_ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  for (const Combination& c : pairwise) {
    if (c.precision != fp32 || c.data * c.tensor * c.pipeline > num_ranks) continue;
    const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
    if (ranks.get() == MPI_COMM_NULL) continue;
    const RunResult result = train(gpu_config(c), ranks.get());
    if (rank_of_world() != 0) continue;
    const Difference d = difference(result, cpu_oracle(c));
    const std::string text = cat(name_of(c), ": loss ", d.loss, " norm ", d.norm, " weight ", d.weight, " (",
                                 d.worst_tensor, ") key bias ", d.key_bias);
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    INFO(text);
    CHECK(d.loss <= gpu_tolerance);
    CHECK(d.norm <= gpu_tolerance);
    CHECK(d.weight <= gpu_tolerance);
    CHECK(d.key_bias <= 1e-2);
  }
}

TEST_CASE("the same run on a GPU twice is bitwise equal", "[.][gpu-oracle]") {
  if (!all_ranks_see_a_gpu()) return;
  int num_ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  for (const Combination& c : {Combination{1, 1, 1, false, one_f_one_b, 1, none, 2, fp32},
                               Combination{2, 2, 2, true, one_f_one_b, 1, selective, 2, fp32}}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      if (c.data * c.tensor * c.pipeline > num_ranks) continue;
      const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
      if (ranks.get() == MPI_COMM_NULL) continue;
      Config config = gpu_config(c);
      config.precision.dtype = precision;
      INFO(name_of(c) << " " << to_text(precision));
      const RunResult first = train(config, ranks.get());
      CHECK(bitwise_equal(first, train(config, ranks.get())));
    }
  }
}
