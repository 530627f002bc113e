// I1: every grid, schedule, recompute setting and micro-batch split equals one rank. One mpirun loops over a table.
#include <cstdio>
#include <map>

#include "compare.hpp"
#include "support/catch.hpp"

using namespace potato;
using namespace potato::test;

namespace {

struct Combination {
  int data, tensor, pipeline;
  bool sequence;
  PipelineSchedule schedule;
  int chunks;
  Recompute recompute;
  int micro_batch;
  Precision precision;
};

constexpr auto gpipe = PipelineSchedule::gpipe;
constexpr auto one_f_one_b = PipelineSchedule::one_f_one_b;
constexpr auto interleaved = PipelineSchedule::interleaved;
constexpr auto none = Recompute::none;
constexpr auto selective = Recompute::selective;
constexpr auto full = Recompute::full;
constexpr auto fp64 = Precision::fp64;
constexpr auto fp32 = Precision::fp32;

const std::vector<Combination> pairwise = {
#include "oracle_pairwise.inc"
};

// Uneven stages everywhere: 5 layers for up to 4 stages, 9 for 8, one more than the chunks of all stages else.
std::int64_t layers_of(const Combination& c) {
  if (c.schedule == interleaved) return c.pipeline * c.chunks + 1;
  return c.pipeline == 8 ? 9 : 5;
}

Config config_of(const Combination& c) {
  Config config = small_config();
  config.parallel.tensor = c.tensor;
  config.parallel.pipeline = c.pipeline;
  config.parallel.sequence = c.sequence;
  config.parallel.schedule = c.schedule;
  config.parallel.virtual_chunks = c.chunks;
  config.train.recompute = c.recompute;
  config.train.micro_batch_size = c.micro_batch;
  config.precision.dtype = c.precision;
  config.model.num_layers = layers_of(c);
  return config;
}

std::string name_of(const Combination& c) {
  return cat(c.data, "x", c.tensor, "x", c.pipeline, c.sequence ? " sequence " : " ", to_text(c.schedule), "/",
             c.chunks, " recompute ", to_text(c.recompute), " micro-batch ", c.micro_batch, " ", to_text(c.precision));
}

bool is_valid(const Combination& c) { return check_config(config_of(c), c.data * c.tensor * c.pipeline).empty(); }

// One rank's result, made on rank 0 and remembered.
const RunResult& oracle(const Combination& c) {
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

void check_combination(const Combination& c) {
  const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
  if (ranks.get() == MPI_COMM_NULL) return;
  const RunResult result = train(config_of(c), ranks.get());
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) return;
  const Difference d = difference(result, oracle(c));
  const double tolerance = c.precision == fp64 ? 1e-9 : 2e-4;
  INFO(name_of(c) << ": loss " << d.loss << " norm " << d.norm << " weight " << d.weight << " (" << d.worst_tensor
                  << ") key bias " << d.key_bias);
  CHECK(d.loss <= tolerance);
  CHECK(d.norm <= tolerance);
  CHECK(d.weight <= tolerance);
  CHECK(d.key_bias <= (c.precision == fp64 ? 1e-8 : 1e-2));
  if (!(d.loss <= tolerance && d.norm <= tolerance && d.weight <= tolerance)) {
    std::fprintf(stderr, "%s: loss %.2e norm %.2e weight %.2e (%s)\n", name_of(c).c_str(), d.loss, d.norm, d.weight,
                 d.worst_tensor.c_str());
  }
}

int world_size() {
  int num_ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  return num_ranks;
}

}  // namespace

TEST_CASE("one rank learns something", "[oracle][sanitize]") {
  Config config = config_of({1, 1, 1, false, one_f_one_b, 1, none, 4, fp64});
  config.optimizer.learning_rate = 1e-2;
  const RunResult result = train(config, MPI_COMM_SELF);
  CHECK(result.losses.front() == Approx(std::log(257)).epsilon(0.02));
  CHECK(result.losses.back() < result.losses.front() - 0.1);
}

TEST_CASE("case-09 case-10 case-11 case-12 case-13 case-16: every grid equals one rank, pairwise", "[oracle]") {
  for (const Combination& c : pairwise) {
    if (c.data * c.tensor * c.pipeline <= world_size()) check_combination(c);
  }
}

TEST_CASE("every grid equals one rank, full product", "[.][long-oracle]") {
  const std::vector<std::array<int, 3>> grids = {
      {8, 1, 1}, {4, 2, 1}, {4, 1, 2}, {2, 4, 1}, {2, 1, 4}, {2, 2, 2}, {1, 8, 1}, {1, 4, 2}, {1, 2, 4}, {1, 1, 8},
      {4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {1, 2, 2}, {1, 1, 4}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 1, 1}};
  int num_checked = 0;
  for (const auto& grid : grids) {
    for (const bool sequence : {false, true}) {
      for (const auto& [schedule, chunks] :
           {std::pair{gpipe, 1}, std::pair{one_f_one_b, 1}, std::pair{interleaved, 2}, std::pair{interleaved, 3}}) {
        for (const Recompute recompute : {none, selective, full}) {
          for (const int micro_batch : {1, 2, 4}) {
            for (const Precision precision : {fp64, fp32}) {
              const Combination c{grid[0], grid[1],   grid[2],     sequence, schedule,
                                  chunks,  recompute, micro_batch, precision};
              if (!is_valid(c)) continue;
              check_combination(c);
              ++num_checked;
            }
          }
        }
      }
    }
  }
  CHECK(num_checked > 500);
}

TEST_CASE("the same run twice is bitwise equal", "[oracle][sanitize]") {
  for (const Combination& c : {Combination{2, 2, 2, true, one_f_one_b, 1, selective, 2, fp32},
                               Combination{1, 2, 2, false, interleaved, 2, none, 2, fp64},
                               Combination{2, 1, 2, false, gpipe, 1, full, 2, fp32}}) {
    if (c.data * c.tensor * c.pipeline > world_size()) continue;
    const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
    if (ranks.get() == MPI_COMM_NULL) continue;
    INFO(name_of(c));
    const RunResult first = train(config_of(c), ranks.get());
    CHECK(bitwise_equal(first, train(config_of(c), ranks.get())));
  }
}

TEST_CASE("the sweep with streams delayed at random gives equal results", "[oracle]") {
  for (const Combination& c : pairwise) {
    if (c.data * c.tensor * c.pipeline > world_size()) continue;
    Config config = config_of(c);
    config.train.steps = 2;
    config.optimizer.warmup_steps = 1;
    const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
    if (ranks.get() == MPI_COMM_NULL) continue;
    INFO(name_of(c));
    const RunResult calm = train(config, ranks.get());
    config.run.debug_stream_delay_us = 300;
    CHECK(bitwise_equal(calm, train(config, ranks.get())));
  }
}
