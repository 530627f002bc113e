// Brings the data ranks' shards of the weights together: after an update (ZeRO stages 1 and 2), or layer by layer before
// each use (stage 3).
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

// All gathers run on the communication stream, in an order that every data rank has alike. At stage 3 a unit's weights
// lie in memory from the arena from its gathering to its release; units are gathered ahead of their use in the order of
// the program, which begin() is told.
class WeightGatherer {
 public:
  struct Options {
    std::int64_t ahead_elems = 0;  // stage 3: gathered ahead of their use, but at least one unit
    bool overlap = true;           // else nothing ahead, and the compute stream waits for each gather
  };
  WeightGatherer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute, Stream& communication,
                 Arena& memory, Options options);

  // After the update of a bucket's shard was enqueued on `stream`. At stages 1 and 2 its whole weights follow.
  void updated(int bucket, Stream& stream);
  // After the last updated(): the compute stream continues only with all weights in place.
  void finish_update();

  // Stage 3: the units that the coming passes enter, in order; valid until end().
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
  std::deque<Event> updated_;  // by bucket
  Event released_;             // on the compute stream: all memory given back before is free
  Event done_;
  std::span<const int> uses_;
  std::size_t entered_ = 0;    // of uses_
  std::size_t requested_ = 0;  // of uses_
  StreamTimer wait_timer_;
};

}  // namespace potato
