// I1: every grid, schedule, recompute setting and micro-batch split equals one rank. One mpirun loops over a table.
#include "oracle.hpp"

using namespace potato;
using namespace potato::test;

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

// 16-bit activations and weights, fp32 masters and gradients: a grid rounds partial sums that one rank does not.
TEST_CASE("bf16 on a grid stays within its rounding of fp32 on one rank", "[oracle][sanitize]") {
  for (const Combination& c : {Combination{1, 1, 1, false, one_f_one_b, 1, none, 2, fp32},
                               Combination{2, 1, 2, false, one_f_one_b, 1, selective, 2, fp32},
                               Combination{1, 4, 1, true, one_f_one_b, 1, none, 2, fp32},
                               Combination{2, 2, 2, true, interleaved, 2, full, 2, fp32}}) {
    if (c.data * c.tensor * c.pipeline > world_size()) continue;
    const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
    if (ranks.get() == MPI_COMM_NULL) continue;
    Config config = config_of(c);
    config.precision.dtype = Precision::bf16;
    const RunResult result = train(config, ranks.get());
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) continue;
    const Difference d = difference(result, oracle(c));
    INFO(name_of(c) << " in bf16: loss " << d.loss << " norm " << d.norm);
    // bf16 keeps 8 bits: relative errors of 2^-9 an operation, averaged over some thousand targets.
    CHECK(d.loss <= 2e-3);
    CHECK(d.norm <= 2e-2);
    CHECK(d.loss > 0);
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
