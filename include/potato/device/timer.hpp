// How long a stream spends between two of its points.
#pragma once

#include <cstddef>
#include <deque>

#include "potato/device/stream.hpp"

namespace potato {

// Intervals on a stream's own clock; they are there after the stream's next synchronize(). Allocates only while the
// number of intervals between two clear() grows.
class StreamTimer {
 public:
  struct Interval {
    double start_s = 0;
    double stop_s = 0;
  };

  void start(Stream& stream) {
    if (num_intervals_ == intervals_.size()) intervals_.emplace_back();
    stream.mark_time(&intervals_[num_intervals_++].start_s);
  }
  void stop(Stream& stream) { stream.mark_time(&intervals_[num_intervals_ - 1].stop_s); }
  void clear() noexcept { num_intervals_ = 0; }

  double total_s() const {
    double total = 0;
    for (std::size_t i = 0; i < num_intervals_; ++i) total += intervals_[i].stop_s - intervals_[i].start_s;
    return total;
  }
  // The part of `inner`'s intervals that lies within intervals of this timer. Both of one stream, each in order.
  double covered_s(const StreamTimer& inner) const {
    double total = 0;
    std::size_t j = 0;
    for (std::size_t i = 0; i < num_intervals_; ++i) {
      while (j < inner.num_intervals_ && inner.intervals_[j].start_s < intervals_[i].start_s) ++j;
      for (; j < inner.num_intervals_ && inner.intervals_[j].stop_s <= intervals_[i].stop_s; ++j) {
        total += inner.intervals_[j].stop_s - inner.intervals_[j].start_s;
      }
    }
    return total;
  }

 private:
  std::deque<Interval> intervals_;  // addresses stay
  std::size_t num_intervals_ = 0;
};

}  // namespace potato
