// I1 under ZeRO: every stage, with and without offload, on every grid equals one rank (case-14, case-19).
#include "oracle.hpp"

using namespace potato;
using namespace potato::test;

namespace {

struct ZeroCase {
  Combination grid;
  int stage;
  OffloadTarget offload;
};

Config config_of(const ZeroCase& c) {
  Config config = potato::test::config_of(c.grid);
  config.zero.stage = c.stage;
  config.zero.offload_optimizer = c.offload;
  if (c.stage == 3) {
    config.zero.reduce_bucket_size = ZeroConfig{}.reduce_bucket_size;
    config.zero.offload_param = c.offload;
  }
  return config;
}

std::string name_of(const ZeroCase& c) {
  return cat(potato::test::name_of(c.grid), " stage ", c.stage, " offload ", to_text(c.offload));
}

void check_case(const ZeroCase& c) {
  if (c.grid.data * c.grid.tensor * c.grid.pipeline > world_size()) return;
  check_against_oracle(config_of(c), c.grid, name_of(c));
}

// All factorisations of 8, with a different schedule, recompute setting and sequence parallelism on each.
const std::vector<Combination> grids_of_8 = {
    {8, 1, 1, false, one_f_one_b, 1, none, 2, fp64}, {4, 2, 1, true, gpipe, 1, selective, 1, fp64},
    {4, 1, 2, false, gpipe, 1, full, 2, fp64},       {2, 4, 1, false, one_f_one_b, 1, full, 4, fp64},
    {2, 1, 4, false, interleaved, 2, none, 2, fp64}, {2, 2, 2, true, interleaved, 2, selective, 2, fp64},
    {1, 8, 1, true, one_f_one_b, 1, none, 4, fp64},  {1, 4, 2, true, one_f_one_b, 1, selective, 2, fp64},
    {1, 2, 4, false, interleaved, 3, full, 4, fp64}, {1, 1, 8, false, one_f_one_b, 1, none, 1, fp64}};

// Also where fewer ranks are there.
const std::vector<Combination> small_grids = {{1, 1, 1, false, gpipe, 1, none, 2, fp64},
                                              {2, 1, 1, false, gpipe, 1, none, 2, fp64},
                                              {2, 2, 1, true, one_f_one_b, 1, selective, 2, fp64},
                                              {2, 1, 2, false, one_f_one_b, 1, none, 2, fp64},
                                              {4, 1, 1, false, one_f_one_b, 1, full, 2, fp64}};

constexpr OffloadTarget on_device = OffloadTarget::none;
constexpr OffloadTarget on_host = OffloadTarget::cpu;

}  // namespace

TEST_CASE("case-14 case-19: every ZeRO stage on every grid equals one rank", "[oracle][zero]") {
  int number = 0;
  for (const auto* grids : {&small_grids, &grids_of_8}) {
    for (Combination grid : *grids) {
      for (int stage = 0; stage <= 3; ++stage, ++number) {
        grid.precision = number % 3 == 0 ? fp32 : fp64;
        check_case({grid, stage, (number + number / 4) % 2 == 0 ? on_device : on_host});
      }
    }
  }
}

TEST_CASE("every ZeRO stage with and without offload on every grid, full product", "[.][long-oracle]") {
  for (const auto* grids : {&small_grids, &grids_of_8}) {
    for (Combination grid : *grids) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const OffloadTarget offload : {on_device, on_host}) {
          for (const Precision precision : {fp64, fp32}) {
            grid.precision = precision;
            check_case({grid, stage, offload});
          }
        }
      }
    }
  }
}

TEST_CASE("ZeRO with streams delayed at random gives equal results", "[oracle][zero]") {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const Combination& grid : {small_grids[3], grids_of_8[4], grids_of_8[5]}) {
      if (grid.data * grid.tensor * grid.pipeline > world_size()) continue;
      const SubCommunicator ranks(grid.data * grid.tensor * grid.pipeline);
      if (ranks.get() == MPI_COMM_NULL) continue;
      Config config = config_of(ZeroCase{grid, stage, stage % 2 == 0 ? on_device : on_host});
      config.train.steps = 2;
      config.optimizer.warmup_steps = 1;
      INFO(name_of(ZeroCase{grid, stage, on_host}));
      const RunResult calm = train(config, ranks.get());
      config.run.debug_stream_delay_us = 300;
      CHECK(bitwise_equal(calm, train(config, ranks.get())));
      config.zero.overlap_comm = false;
      CHECK(bitwise_equal(calm, train(config, ranks.get())));
      if (stage < 3) continue;
      config.zero.overlap_comm = true;
      for (const std::int64_t ahead : {30'000, 1'000'000'000}) {  // two or three layers, all
        config.zero.allgather_bucket_size = ahead;
        CHECK(bitwise_equal(calm, train(config, ranks.get())));
      }
    }
  }
}
