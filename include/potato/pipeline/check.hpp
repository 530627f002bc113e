// Proves that a schedule can be followed: nothing missing, nothing twice, no deadlock, and how much memory it keeps.
#pragma once

#include <string>
#include <vector>

#include "potato/pipeline/schedule.hpp"

namespace potato {

// A channel carries the activations, or the gradients, that one chunk of one stage sends to the next virtual stage. It
// is first in, first out, without tags of micro-batches. A send is asynchronous, but its buffer is one of
// `channel_capacity`: the n-th send blocks until the receive of item n - channel_capacity. The executor holds as many
// items in flight on each channel. One is enough for all three schedules (tested over P <= 16, 64 micro-batches and
// 4 chunks), and costs no time either: the bubbles are those of unbounded buffers.
inline constexpr int channel_capacity = 1;

struct ScheduleReport {
  std::vector<std::string> problems;  // each names the stage, the position in its list (from 0) and the pass
  // [num_stages]: most (micro-batch, chunk) pairs whose forward is done and whose backward (with its weight-gradient
  // pass, where there is one: it still needs the activations) is not. Empty where an index is out of range.
  std::vector<int> max_alive;

  bool ok() const { return problems.empty(); }
};

// Checks that
// - every index is in range, and each stage has exactly one forward and one backward for each (micro-batch, chunk), in
//   this order; weight-gradient passes for all pairs or for none, each after its backward;
// - on every channel the order of sends equals the order of receives;
// - the simulation below runs to its end (tried only where every pass is there exactly once).
// Never throws for a bad schedule: everything found is in the report.
ScheduleReport check_schedule(const Schedule& schedule);

struct PassCosts {
  double forward = 1, backward = 2, weight_gradient = 0;
};

// Where a simulation ended. Stage s is blocked where num_done[s] < stages[s].size().
struct Simulation {
  std::vector<int> num_done;          // [num_stages]: passes completed, their sends included
  std::vector<bool> blocked_in_send;  // [num_stages]: else the stage waits for its input
  std::vector<double> busy;           // [num_stages]: time spent in passes
  double end_time = 0;                // when the last pass ended; same unit as the costs
};

// Every stage runs its passes in order; a pass starts when its input has been sent (the activation of the virtual stage
// before it, the gradient of the one after it), which takes the next item of the channel whatever its micro-batch; a
// send blocks the stage while `capacity` earlier items of its channel have not been received. Communication takes no
// time. All indices have to be in range.
Simulation simulate(const Schedule& schedule, const PassCosts& costs = {}, int capacity = channel_capacity);

}  // namespace potato
