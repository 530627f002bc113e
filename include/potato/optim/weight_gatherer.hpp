// Brings the data ranks' shards of the weights together: once after each update (ZeRO stages 1 and 2), or layer by
// layer before each use (stage 3).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "potato/comm/process_grid.hpp"
#include "potato/device/stream.hpp"
#include "potato/device/timer.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// All gathers run on the communication stream, in an order that every data rank has alike: that in which the passes
// after begin() use the units. At stages 1 and 2 the passes that follow an update start while later layers' weights are
// still under way. At stage 3 a unit's weights lie in memory from the arena from their gathering to their release.
class WeightGatherer {
 public:
  struct Options {
    std::int64_t ahead_elems = 0;  // stage 3: gathered ahead of their use, but at least one unit
    bool overlap = true;           // else nothing ahead, and the compute stream waits for each gather
  };
  WeightGatherer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute, Stream& communication,
                 Arena& memory, Options options);

  // After the update of a bucket's shard was enqueued on the compute stream.
  void updated(int bucket);

  // The units that the coming passes enter, in order; valid until end(). A unit may be entered again while it is in use
  // at stages 1 and 2 only.
  void begin(std::span<const int> uses);
  void enter(int unit);
  void leave(int unit);
  void end();

  // Time that the compute stream spends waiting for weights.
  StreamTimer& wait_timer() noexcept { return wait_timer_; }

 private:
  struct Unit {
    std::vector<int> buckets;
    std::vector<Tensor> memory;  // by bucket
    std::int64_t num_elems = 0;
    int num_uses = 0;  // entered or requested, and not left
    Event gathered;
  };

  // Stages 1 and 2.
  void gather_updated();
  void wait_for_bucket(int bucket);
  // Stage 3.
  void request(std::size_t position);
  void gather(Unit& unit);
  void wait(Event& event);

  ParameterRegistry& registry_;
  const GridCommunicators& grid_;
  Stream& compute_;
  Stream& communication_;
  Arena& memory_;
  Options options_;
  std::deque<Unit> units_;
  struct BucketState {
    Event updated;              // on the compute stream
    Event gathered;             // on the communication stream, stages 1 and 2
    bool is_updated = false;    // and not gathered yet
    bool is_under_way = false;  // gathered, and the compute stream has not waited for it
  };
  std::deque<BucketState> buckets_;
  Event released_;  // on the compute stream: all memory given back before is free
  std::span<const int> uses_;
  std::size_t entered_ = 0;    // of uses_
  std::size_t requested_ = 0;  // of uses_
  StreamTimer wait_timer_;
};

}  // namespace potato
