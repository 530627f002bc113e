// Sums gradients over the ranks that share a parameter, bucket by bucket, while backward still runs.
#pragma once

#include <deque>
#include <vector>

#include "potato/comm/process_grid.hpp"
#include "potato/device/stream.hpp"
#include "potato/device/timer.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// Every bucket is summed over the data axis, at ZeRO stage 0 whole on every rank, from stage 1 on only into shards. The
// tied embedding's shard is also summed over first and last stage; replicated parameters under sequence parallelism
// also over the tensor axis, since each tensor rank saw only its rows.
//
// Stages 2 and 3 keep no whole gradients: a bucket's lie in a buffer from the arena while a micro-batch's backward
// fills it, and are then reduced and added to the shard. One buffer is filled while the one before it is reduced.
class GradientReducer {
 public:
  struct Options {
    bool sequence_parallel = false;
    // Else: below stage 2 all buckets are reduced after the last backward pass, in the same order; from stage 2 on the
    // compute stream waits for each reduction.
    bool overlap = true;
    // In which the data axis sums: the gradients' own, or 16 bits on the way.
    DType dtype = DType::f32;
  };
  // `communication` is the stream of the data and embedding communicators; `buffers` the arena of stage 2's and 3's
  // buffers, and of one for 16 bits.
  GradientReducer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute, Stream& communication,
                  Arena& buffers, Options options);

  // Before the first pass of a step.
  void begin_step(std::int64_t num_micro_batches);
  // Before a unit's backward.
  void enter(int unit);
  // After the last pass was enqueued: the compute stream continues only with all sums in place.
  void finish_step();

  // Time that the compute stream spends waiting for reductions.
  StreamTimer& wait_timer() noexcept { return wait_timer_; }

 private:
  struct State {
    Event ready;                   // on the compute stream
    Event reduced;                 // on the communication stream
    std::int64_t num_reduced = 0;  // in this step
    Tensor buffer;                 // stages 2 and 3
  };
  struct Buffer {
    Tensor memory;
    int bucket = -1;  // that it is reduced for
    std::int64_t round = 0;
  };

  State& state(int bucket) { return states_[static_cast<std::size_t>(bucket)]; }
  void on_ready(int bucket);
  // A whole step's gradients of a bucket.
  void reduce(int bucket);
  // A micro-batch's.
  void reduce_into_shard(int bucket);
  void sum_over_tensor_ranks(int bucket, TensorView gradients);
  void start_reduction(int bucket);
  // On the communication stream: `shard` [num_elems / shards] = its part of the sum of `gradients` [num_elems] over the
  // data axis; it may be that part itself.
  void reduce_scatter(TensorView gradients, TensorView shard);
  void all_reduce(TensorView gradients);
  void wait(Event& event);
  // Takes back the buffers that were given to reductions before `round`.
  void retire_before(std::int64_t round);
  // The tied embedding's sum needs the other end of the pipeline, whose backward ends at another time: it comes last,
  // so that no other bucket stands behind it.
  bool waits_for_peers(int bucket) const;

  ParameterRegistry& registry_;
  const GridCommunicators& grid_;
  Stream& compute_;
  Stream& communication_;
  Arena& buffers_;
  Options options_;
  Tensor rounded_;            // [largest bucket] of 16 bits, where sums are made in them
  std::deque<State> states_;  // by bucket
  std::vector<std::vector<int>> buckets_of_unit_;
  std::int64_t num_micro_batches_ = 0;
  std::vector<Buffer> in_flight_;  // oldest first
  std::int64_t round_ = 0;         // of units' backward passes that took buffers
  Event done_;
  StreamTimer wait_timer_;
};

// The parts of the gradients that this rank counts in the global norm: each logical element is counted by exactly one
// rank of the grid, its owner, on data coordinate 0 or the data rank whose shard has it.
std::vector<ShardRange> ranges_in_norm(const ParameterRegistry& registry, const GridCommunicators& grid);

// result [1] fp64 += weight · squared norm of those parts of the reduced gradients.
void add_squared_norm_of(const ParameterRegistry& registry, const std::vector<ShardRange>& ranges, double weight,
                         TensorView result, Stream& stream);

}  // namespace potato
