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

TEST_CASE("every ZeRO stage on GPUs equals one CPU rank, with and without offload", "[.][gpu-oracle][zero]") {
  if (!all_ranks_see_a_gpu()) return;
  int num_ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  for (const Combination& c : {Combination{1, 1, 1, false, gpipe, 1, none, 2, fp32},
                               Combination{2, 1, 1, false, one_f_one_b, 1, selective, 2, fp32},
                               Combination{8, 1, 1, false, one_f_one_b, 1, none, 2, fp32},
                               Combination{2, 2, 2, true, interleaved, 2, full, 2, fp32}}) {
    if (c.data * c.tensor * c.pipeline > num_ranks) continue;
    const SubCommunicator ranks(c.data * c.tensor * c.pipeline);
    if (ranks.get() == MPI_COMM_NULL) continue;
    for (int stage = 0; stage <= 3; ++stage) {
      for (const Precision precision : {fp32, Precision::bf16, Precision::fp16}) {
        Config config = gpu_config(c);
        config.precision.dtype = precision;
        config.zero.stage = stage;
        if (stage == 3) config.zero.reduce_bucket_size = ZeroConfig{}.reduce_bucket_size;
        if ((stage + static_cast<int>(precision)) % 2 == 0) config.zero.offload_optimizer = OffloadTarget::cpu;
        config.zero.pin_memory = config.zero.offload_optimizer == OffloadTarget::cpu;
        if (stage == 3 && precision != fp32) config.zero.offload_param = OffloadTarget::cpu;
        const RunResult result = train(config, ranks.get());
        if (rank_of_world() != 0) continue;
        const Difference d = difference(result, cpu_oracle(c));
        const std::string text =
            cat(name_of(c), " in ", to_text(precision), ", stage ", stage, ", offload ",
                to_text(config.zero.offload_optimizer), "/", to_text(config.zero.offload_param), ": loss ", d.loss,
                " norm ", d.norm, " weight ", d.weight, " (", d.worst_tensor, ")");
        std::printf("%s\n", text.c_str());
        std::fflush(stdout);
        INFO(text);
        // As on the CPU (tests/mpi/test_zero.cpp).
        CHECK(d.loss <= (precision == fp32 ? gpu_tolerance : precision == Precision::bf16 ? 2e-3 : 2.5e-4));
        CHECK(d.norm <= (precision == fp32 ? gpu_tolerance : precision == Precision::bf16 ? 2e-2 : 2.5e-3));
        if (precision == fp32) CHECK(d.weight <= gpu_tolerance);
      }
    }
  }
}

TEST_CASE("case-15: an overflow on GPUs skips the step and changes nothing", "[.][gpu-oracle][zero]") {
  if (!all_ranks_see_a_gpu()) return;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const OffloadTarget offload : {OffloadTarget::none, OffloadTarget::cpu}) {
      Config config = small_config();
      config.run.device = DeviceChoice::cuda;
      config.precision.dtype = Precision::fp16;
      config.precision.hysteresis = 1;
      config.precision.initial_scale_power = 8;
      config.zero.stage = stage;
      if (stage == 3) config.zero.reduce_bucket_size = ZeroConfig{}.reduce_bucket_size;
      config.zero.offload_optimizer = offload;
      const auto engine = make_engine(config, MPI_COMM_WORLD);
      INFO("stage " << stage << " offload " << to_text(offload));
      CHECK(!step(*engine, config, 0).skipped);
      const auto before = gather(engine->fetch_state()[0], MPI_COMM_WORLD);
      fill(*engine, config, 1, 16);
      engine->enqueue_step(1, 16, counted_targets(config, 16), 1e-3, 2, true);
      CHECK(engine->finish_step().skipped);
      CHECK(engine->loss_scaler().scale() == 128);
      CHECK(gather(engine->fetch_state()[0], MPI_COMM_WORLD) == before);
      CHECK(engine->first_nonfinite_gradient().has_value());
      CHECK(!step(*engine, config, 1).skipped);
      CHECK(gather(engine->fetch_state()[0], MPI_COMM_WORLD) != before);
    }
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
