// How evenly ranks work: time per phase over all ranks, and the rank that holds the others up.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "potato/comm/host_group.hpp"
#include "potato/config/config.hpp"
#include "potato/train/engine.hpp"

namespace potato {

// Seconds a step of one rank.
struct RankTimes {
  double forward_s = 0;
  double backward_s = 0;
  double tensor_comm_s = 0;
  double data_comm_s = 0;
  double bubble_s = 0;
  double optimizer_s = 0;
  double data_loading_s = 0;
};

// The own work of a rank, waiting for others left out: what a straggler has more of.
double own_work_s(const RankTimes& times);

// "rank 5 on node7: 12.3 ms a step, 1.8 times the median of its stage's ranks (6.8 ms)": the rank that is furthest over
// `threshold` times the median of its pipeline stage's ranks, and by at least 2 ms. "" where none is.
std::string straggler(const std::vector<RankTimes>& times, const GridShape& shape,
                      const std::vector<std::string>& host_of_rank, double threshold);

// "forward 1.0 / 1.1 / 1.3 | backward ...": minimum, median and maximum over ranks, ms a step.
std::string spread(const std::vector<RankTimes>& times);

// Gathers them every log.steps_per_print steps.
class Stragglers {
 public:
  Stragglers(const Config& config, const HostGroup& world, const GridShape& shape,
             std::vector<std::string> host_of_rank);

  void add(const PhaseTimes& times, double data_loading_s);
  // Lines to print, on rank 0; starts anew. Collective.
  std::vector<std::string> gathered();

 private:
  const Config config_;
  const HostGroup& world_;
  GridShape shape_;
  std::vector<std::string> host_of_rank_;
  PhaseTimes times_;
  double data_loading_s_ = 0;
  std::int64_t num_steps_ = 0;
};

}  // namespace potato
