// The table of combinations that the oracle sweeps loop over, and the small model's configuration of each.
#pragma once

#include <string>
#include <vector>

#include "small_model.hpp"

namespace potato::test {

struct Combination {
  int data, tensor, pipeline;
  bool sequence;
  PipelineSchedule schedule;
  int chunks;
  Recompute recompute;
  int micro_batch;
  Precision precision;
};

inline constexpr auto gpipe = PipelineSchedule::gpipe;
inline constexpr auto one_f_one_b = PipelineSchedule::one_f_one_b;
inline constexpr auto interleaved = PipelineSchedule::interleaved;
inline constexpr auto none = Recompute::none;
inline constexpr auto selective = Recompute::selective;
inline constexpr auto full = Recompute::full;
inline constexpr auto fp64 = Precision::fp64;
inline constexpr auto fp32 = Precision::fp32;

inline const std::vector<Combination> pairwise = {
#include "oracle_pairwise.inc"
};

// Uneven stages everywhere: 5 layers for up to 4 stages, 9 for 8, one more than the chunks of all stages else.
inline std::int64_t layers_of(const Combination& c) {
  if (c.schedule == interleaved) return c.pipeline * c.chunks + 1;
  return c.pipeline == 8 ? 9 : 5;
}

inline Config config_of(const Combination& c) {
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

inline std::string name_of(const Combination& c) {
  return cat(c.data, "x", c.tensor, "x", c.pipeline, c.sequence ? " sequence " : " ", to_text(c.schedule), "/",
             c.chunks, " recompute ", to_text(c.recompute), " micro-batch ", c.micro_batch, " ", to_text(c.precision));
}

inline bool is_valid(const Combination& c) {
  return check_config(config_of(c), c.data * c.tensor * c.pipeline).empty();
}

}  // namespace potato::test
