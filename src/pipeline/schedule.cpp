#include "potato/pipeline/schedule.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "potato/core/error.hpp"
#include "potato/pipeline/check.hpp"

namespace potato {

namespace {

Schedule empty_schedule(int num_stages, int num_micro_batches, int num_chunks) {
  std::vector<std::string> problems;
  const auto check = [&](const char* what, int value) {
    if (value < 1) problems.push_back(cat("A pipeline schedule needs at least 1 ", what, ", not ", value, "."));
  };
  check("stage (parallel.pipeline)", num_stages);
  check("micro-batch a step (from train.global_batch_size and train.micro_batch_size)", num_micro_batches);
  check("chunk a stage (parallel.virtual_chunks)", num_chunks);
  if (!problems.empty()) throw ConfigError(problems);
  Schedule schedule{num_stages, num_micro_batches, num_chunks, {}};
  schedule.stages.resize(static_cast<std::size_t>(num_stages));
  return schedule;
}

// `num_warmup` forward passes, then one forward and one backward in turn while there are forward passes, then the rest.
// forward(k) and backward(k) give the k-th pass of each kind; there are `num_pairs` of each.
std::vector<Pass> alternate(int num_pairs, int num_warmup, const std::function<Pass(int)>& forward,
                            const std::function<Pass(int)>& backward) {
  num_warmup = std::min(num_warmup, num_pairs);
  std::vector<Pass> passes;
  passes.reserve(2 * static_cast<std::size_t>(num_pairs));
  for (int k = 0; k < num_warmup; ++k) passes.push_back(forward(k));
  for (int k = num_warmup; k < num_pairs; ++k) {
    passes.push_back(forward(k));
    passes.push_back(backward(k - num_warmup));
  }
  for (int k = num_pairs - num_warmup; k < num_pairs; ++k) passes.push_back(backward(k));
  return passes;
}

Pass forward_of(int micro_batch) { return {PassKind::forward, micro_batch, 0}; }
Pass backward_of(int micro_batch) { return {PassKind::backward, micro_batch, 0}; }

}  // namespace

std::string describe(const Pass& pass) {
  const char* kind = pass.kind == PassKind::forward    ? "forward"
                     : pass.kind == PassKind::backward ? "backward"
                                                       : "weight gradient";
  return cat(kind, " of micro-batch ", pass.micro_batch, ", chunk ", pass.chunk);
}

Schedule gpipe_schedule(int num_stages, int num_micro_batches) {
  Schedule schedule = empty_schedule(num_stages, num_micro_batches, 1);
  for (std::vector<Pass>& passes : schedule.stages) {
    passes = alternate(num_micro_batches, num_micro_batches, forward_of, backward_of);
  }
  return schedule;
}

Schedule one_f_one_b_schedule(int num_stages, int num_micro_batches) {
  Schedule schedule = empty_schedule(num_stages, num_micro_batches, 1);
  for (int s = 0; s < num_stages; ++s) {
    schedule.stages[static_cast<std::size_t>(s)] =
        alternate(num_micro_batches, num_stages - s - 1, forward_of, backward_of);
  }
  return schedule;
}

Schedule interleaved_schedule(int num_stages, int num_micro_batches, int num_chunks) {
  Schedule schedule = empty_schedule(num_stages, num_micro_batches, num_chunks);
  if (num_micro_batches % num_stages != 0) {
    const int below = num_micro_batches / num_stages * num_stages;
    throw ConfigError(
        cat("parallel.schedule = interleaved needs a number of micro-batches that is a multiple of "
            "parallel.pipeline = ",
            num_stages, ", not ", num_micro_batches, "; the nearest valid numbers are ",
            below > 0 ? cat(below, " and ") : "", below + num_stages,
            " (train.global_batch_size / train.micro_batch_size / data ranks)."));
  }
  if (num_chunks == 1) return one_f_one_b_schedule(num_stages, num_micro_batches);
  // The k-th pass: groups of num_stages micro-batches, each group through all chunks (backward: from the last chunk).
  const int group_passes = num_stages * num_chunks;
  const auto micro_batch_at = [=](int k) { return k / group_passes * num_stages + k % num_stages; };
  const auto chunk_at = [=](int k) { return k % group_passes / num_stages; };
  const auto forward = [=](int k) { return Pass{PassKind::forward, micro_batch_at(k), chunk_at(k)}; };
  const auto backward = [=](int k) {
    return Pass{PassKind::backward, micro_batch_at(k), num_chunks - 1 - chunk_at(k)};
  };
  for (int s = 0; s < num_stages; ++s) {
    // The first group passes all chunks but the last before a gradient can exist; two more for each stage to come, so
    // that the gradient has time to travel.
    const int num_warmup = (num_chunks - 1) * num_stages + 2 * (num_stages - s - 1);
    schedule.stages[static_cast<std::size_t>(s)] =
        alternate(num_micro_batches * num_chunks, num_warmup, forward, backward);
  }
  return schedule;
}

double bubble_fraction(const Schedule& schedule, double backward_over_forward) {
  const bool is_split = std::ranges::any_of(schedule.stages, [](const std::vector<Pass>& passes) {
    return std::ranges::any_of(passes, [](const Pass& pass) { return pass.kind == PassKind::weight_gradient; });
  });
  PassCosts costs{1, backward_over_forward, 0};
  if (is_split) costs.backward = costs.weight_gradient = backward_over_forward / 2;
  const Simulation simulation = simulate(schedule, costs);
  for (std::size_t s = 0; s < schedule.stages.size(); ++s) {
    PC_CHECK(simulation.num_done[s] == static_cast<int>(schedule.stages[s].size()), "stage ", s, " is blocked in its ",
             describe(schedule.stages[s][static_cast<std::size_t>(simulation.num_done[s])]));
  }
  const double busy = std::accumulate(simulation.busy.begin(), simulation.busy.end(), 0.0);
  const double total = simulation.end_time * schedule.num_stages;
  return total > 0 ? 1 - busy / total : 0;
}

}  // namespace potato
