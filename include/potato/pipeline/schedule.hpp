// Pipeline schedules as pure data: what each stage does, in which order. Knows nothing of tensors, layers or MPI.
//
// Stage s holds num_chunks pieces of the model; chunk c of stage s is virtual stage c * num_stages + s. An activation
// goes from virtual stage v to v + 1, a gradient from v + 1 to v; between chunks the activation wraps from the last
// stage to stage 0 (a send to itself where there is one stage).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace potato {

// Where a stage has weight_gradient passes, its backward passes compute the gradient of the input only.
enum class PassKind : std::uint8_t { forward, backward, weight_gradient };

struct Pass {
  PassKind kind = PassKind::forward;
  int micro_batch = 0;
  int chunk = 0;

  friend bool operator==(const Pass&, const Pass&) = default;
};

struct Schedule {
  int num_stages = 1;
  int num_micro_batches = 1;
  int num_chunks = 1;
  std::vector<std::vector<Pass>> stages;  // [num_stages]: the passes of each stage, in the order of their execution
};

// For messages: "forward of micro-batch 3, chunk 0".
std::string describe(const Pass& pass);

// All forward passes, then all backward passes (GPipe, Huang et al., NeurIPS 2019, arXiv 1811.06965).
// Throws ConfigError unless all counts are at least 1; so do the two below.
Schedule gpipe_schedule(int num_stages, int num_micro_batches);

// Stage s runs num_stages - s - 1 forward passes ahead, then one forward and one backward in turn, then the rest of the
// backward passes, so that it keeps at most num_stages - s micro-batches alive (PipeDream-Flush; Narayanan et al.,
// SC 2021, arXiv 2104.04473, section 2.2).
Schedule one_f_one_b_schedule(int num_stages, int num_micro_batches);

// Interleaved 1F1B (the same paper): micro-batches go in groups of num_stages, each group through all chunks before the
// next one, so that the bubble shrinks by num_chunks. One chunk is plain 1F1B. Throws ConfigError unless
// num_micro_batches is a multiple of num_stages.
Schedule interleaved_schedule(int num_stages, int num_micro_batches, int num_chunks);

// Share of the time for which a stage idles, in an event simulation (simulate() in check.hpp) where a forward costs 1,
// a backward `backward_over_forward` (half of it each for the two passes of a split one) and communication nothing.
// Mean over the stages, in [0, 1). Throws Error where the schedule cannot run to its end.
double bubble_fraction(const Schedule& schedule, double backward_over_forward = 2);

}  // namespace potato
