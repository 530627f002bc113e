#include "potato/train/stragglers.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "potato/comm/process_grid.hpp"
#include "potato/core/allocations.hpp"

namespace potato {

namespace {

// The lower one of two.
double median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double own_work_s(const RankTimes& times) {
  return std::max(times.forward_s + times.backward_s + times.optimizer_s, times.data_loading_s);
}

std::string straggler(const std::vector<RankTimes>& times, const GridShape& shape,
                      const std::vector<std::string>& host_of_rank, double threshold) {
  constexpr double least_excess_s = 2e-3;
  std::string text;
  double worst = 0;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    std::vector<double> work;
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < times.size(); ++rank) {
      if (grid_coordinates(shape, static_cast<int>(rank)).pipeline != stage) continue;
      work.push_back(own_work_s(times[rank]));
      ranks.push_back(rank);
    }
    const double middle_s = median(work);
    for (std::size_t i = 0; i < work.size(); ++i) {
      const double ratio = middle_s > 0 ? work[i] / middle_s : 0;
      if (ratio <= threshold || work[i] - middle_s < least_excess_s || ratio <= worst) continue;
      worst = ratio;
      char numbers[160];
      std::snprintf(numbers, sizeof(numbers), "%.1f ms a step, %.1f times the median of its stage's ranks (%.1f ms)",
                    work[i] * 1e3, ratio, middle_s * 1e3);
      text = cat("rank ", ranks[i], " on ", host_of_rank[ranks[i]], ": ", numbers);
    }
  }
  return text;
}

std::string spread(const std::vector<RankTimes>& times) {
  constexpr std::array<std::pair<const char*, double RankTimes::*>, 7> phases = {
      {{"forward", &RankTimes::forward_s},
       {"backward", &RankTimes::backward_s},
       {"tensor", &RankTimes::tensor_comm_s},
       {"data axis", &RankTimes::data_comm_s},
       {"bubble", &RankTimes::bubble_s},
       {"optimizer", &RankTimes::optimizer_s},
       {"loading", &RankTimes::data_loading_s}}};
  std::string text;
  for (const auto& [name, field] : phases) {
    std::vector<double> values;
    values.reserve(times.size());
    for (const RankTimes& rank : times) values.push_back(rank.*field * 1e3);
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    char numbers[96];
    std::snprintf(numbers, sizeof(numbers), " %.1f / %.1f / %.1f", *least, median(values), *most);
    text += cat(text.empty() ? "" : " | ", name, numbers);
  }
  return text;
}

Stragglers::Stragglers(const Config& config, const HostGroup& world, const GridShape& shape,
                       std::vector<std::string> host_of_rank)
    : config_(config), world_(world), shape_(shape), host_of_rank_(std::move(host_of_rank)) {}

void Stragglers::add(const PhaseTimes& times, double data_loading_s) {
  times_ += times;
  data_loading_s_ += data_loading_s;
  ++num_steps_;
}

std::vector<std::string> Stragglers::gathered() {
  const LibraryScope library;  // a few small allocations every so many steps
  const bool is_wanted = config_.log.straggler_threshold > 0 || config_.log.wall_clock_breakdown;
  std::vector<std::string> lines;
  if (is_wanted && num_steps_ > 0 && world_.num_ranks() > 1) {
    const double per_step = 1 / static_cast<double>(num_steps_);
    const RankTimes own = {times_.forward_s * per_step,   times_.backward_s * per_step, times_.tensor_comm_s * per_step,
                           times_.data_comm_s * per_step, times_.bubble_s * per_step,   times_.optimizer_s * per_step,
                           data_loading_s_ * per_step};
    const std::string bytes(reinterpret_cast<const char*>(&own), sizeof(own));
    std::vector<RankTimes> times;
    for (const std::string& text : world_.gather(bytes, 0)) {
      std::memcpy(&times.emplace_back(), text.data(), sizeof(RankTimes));
    }
    if (world_.rank() == 0) {
      if (config_.log.wall_clock_breakdown) {
        lines.push_back(cat("     all ranks, ms/step (least / median / most): ", spread(times)));
      }
      const std::string text = straggler(times, shape_, host_of_rank_, config_.log.straggler_threshold);
      if (config_.log.straggler_threshold > 0 && !text.empty()) lines.push_back(cat("straggler   ", text));
    }
  }
  times_ = {};
  data_loading_s_ = 0;
  num_steps_ = 0;
  return lines;
}

}  // namespace potato
