// Who holds a job up: from what all ranks' flight recorders say, without MPI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "potato/comm/process_grid.hpp"
#include "potato/core/flight_recorder.hpp"

namespace potato {

enum class ProcessState : std::uint8_t {
  unknown,  // on another host
  alive,
  stopped,  // by a signal or a debugger
  gone,
};

// A copy of a rank's record.
struct RankState {
  bool is_readable = false;  // else nothing below is known but the rank
  int world_rank = 0;
  ProcessState process = ProcessState::unknown;
  std::string host;
  std::int64_t pid = 0;
  std::int64_t progress = 0;
  std::int64_t step = 0;
  FlightPhase phase = FlightPhase::starting;
  double phase_s = 0;  // since it began
  std::array<std::int64_t, FlightRecord::num_axes> entered{};
  struct Lane {
    FlightPass pass = FlightPass::none;
    std::int64_t micro_batch = -1;
    std::int64_t layer = -1;
    FlightOp op = FlightOp::none;
    bool is_inside = false;
    Axis axis = Axis::world;
    std::int64_t sequence = 0;
    std::int64_t peer = -1;  // world rank
    std::int64_t num_bytes = 0;
    double seconds = 0;  // since the last change
  };
  std::array<Lane, FlightRecord::num_lanes> lanes{};
};

// The state of all ranks as FOLDER has it.
std::vector<RankState> read_rank_states(const std::string& folder, const GridShape& shape, const std::string& own_host);

struct Suspect {
  RankState state;
  std::vector<int> awaited_by;  // world ranks that wait for this one
  std::vector<int> waits_for;
  double suspicion = 0;  // only to sort by
};

// Most suspicious first: processes that are stopped or gone; then ranks that others wait for and that are in no
// operation between ranks themselves; then by how many wait for them. A rank waits for the members of its collective's
// group that have not entered it, and for the peer of its receive or send.
std::vector<Suspect> sort_by_suspicion(const std::vector<RankState>& states, const GridShape& shape);

// "rank 5 on node7 (pid 4711) is stopped: step 12, forward of micro-batch 3, layer 2; 7 ranks wait for it"
std::string accusation(const Suspect& suspect);

// A line a rank, in that order.
std::string hang_table(const std::vector<Suspect>& suspects);

}  // namespace potato
