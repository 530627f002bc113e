// Sums gradients over the ranks that share a parameter, bucket by bucket, while backward still runs.
#pragma once

#include <deque>
#include <vector>

#include "potato/comm/process_grid.hpp"
#include "potato/device/stream.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// Every bucket is summed over the data axis. The tied embedding's is also summed over first and last stage; replicated
// parameters under sequence parallelism also over the tensor axis, since each tensor rank saw only its rows.
class GradientReducer {
 public:
  // `communication` is the stream of the data and embedding communicators. Without overlap all buckets are reduced
  // after the last backward pass, in the same order.
  GradientReducer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute, Stream& communication,
                  bool sequence_parallel, bool overlap);

  // Before the first pass of a step.
  void begin_step(std::int64_t num_micro_batches);
  // After the last pass was enqueued: the compute stream continues only with all sums in place.
  void finish_step();

 private:
  void reduce(int bucket);
  // The tied embedding's sum needs the other end of the pipeline, whose backward ends at another time: it comes last,
  // so that no other bucket stands behind it.
  bool waits_for_peers(int bucket) const;

  ParameterRegistry& registry_;
  const GridCommunicators& grid_;
  Stream& compute_;
  Stream& communication_;
  bool sequence_parallel_;
  bool overlap_;
  std::deque<Event> ready_;  // by bucket
  Event done_;
};

// The flat ranges of the gradients that this rank counts in the global norm: each logical element is counted by exactly
// one rank of the grid, its owner on data coordinate 0.
std::vector<FlatRange> ranges_in_norm(const ParameterRegistry& registry, const GridCommunicators& grid);

// result [1] fp64 += squared norm of those ranges of the reduced gradients.
void add_squared_norm_of(const ParameterRegistry& registry, const std::vector<FlatRange>& ranges, TensorView result,
                         Stream& stream);

}  // namespace potato
