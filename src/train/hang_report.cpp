#include "potato/train/hang_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "potato/core/error.hpp"

namespace potato {

namespace {

// Of a process on this host.
ProcessState process_state(std::int64_t pid) {
  std::ifstream in(cat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(in, text)) return ProcessState::gone;
  const std::size_t end_of_name = text.rfind(')');
  const char state = end_of_name + 2 < text.size() ? text[end_of_name + 2] : '?';
  if (state == 'T' || state == 't') return ProcessState::stopped;
  return state == 'Z' || state == 'X' ? ProcessState::gone : ProcessState::alive;
}

RankState state_of(const FlightRecord& record, const GridShape& shape, const std::string& own_host) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const std::int64_t now_ns = system_time_ns();
  const auto seconds_since = [now_ns](const FlightField& since) {
    return std::max(0.0, static_cast<double>(now_ns - since.load(relaxed)) * 1e-9);
  };
  RankState state;
  state.is_readable = true;
  state.world_rank = static_cast<int>(record.world_rank);
  state.host = record.host.data();
  state.pid = record.pid;
  state.process = state.host == own_host ? process_state(state.pid) : ProcessState::unknown;
  state.progress = record.progress.load(relaxed);
  state.step = record.step.load(relaxed);
  state.phase = static_cast<FlightPhase>(record.phase.load(relaxed));
  state.phase_s = seconds_since(record.phase_since_ns);
  for (std::size_t i = 0; i < state.entered.size(); ++i) state.entered[i] = record.entered[i].load(relaxed);
  for (std::size_t i = 0; i < state.lanes.size(); ++i) {
    const FlightLane& from = record.lanes[i];
    RankState::Lane& lane = state.lanes[i];
    lane.pass = static_cast<FlightPass>(from.pass.load(relaxed));
    lane.micro_batch = from.micro_batch.load(relaxed);
    lane.layer = from.layer.load(relaxed);
    lane.op = static_cast<FlightOp>(from.op.load(relaxed));
    lane.is_inside = from.inside.load(relaxed) != 0;
    lane.axis = static_cast<Axis>(std::clamp<std::int64_t>(from.axis.load(relaxed), 0, FlightRecord::num_axes - 1));
    lane.sequence = from.sequence.load(relaxed);
    lane.num_bytes = from.bytes.load(relaxed);
    lane.seconds = seconds_since(from.since_ns);
    const auto group = grid_group(shape, state.world_rank, lane.axis);
    const std::int64_t peer = from.peer.load(relaxed);
    lane.peer = peer >= 0 && peer < std::ssize(group) ? group[static_cast<std::size_t>(peer)] : -1;
  }
  return state;
}

std::vector<int> awaited(const RankState& state, const std::vector<RankState>& states, const GridShape& shape) {
  std::vector<int> ranks;
  for (const RankState::Lane& lane : state.lanes) {
    if (!lane.is_inside) continue;
    if (lane.op == FlightOp::send || lane.op == FlightOp::receive) {
      if (lane.peer >= 0) ranks.push_back(static_cast<int>(lane.peer));
      continue;
    }
    for (const int member : grid_group(shape, state.world_rank, lane.axis)) {
      const RankState& other = states[static_cast<std::size_t>(member)];
      if (member == state.world_rank) continue;
      if (!other.is_readable || other.entered[static_cast<std::size_t>(lane.axis)] < lane.sequence) {
        ranks.push_back(member);
      }
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool is_between_ranks(const RankState& state) {
  return std::any_of(state.lanes.begin(), state.lanes.end(), [](const auto& lane) { return lane.is_inside; });
}

std::string rank_list(const std::vector<int>& ranks) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, ranks.size()); ++i) text += cat(i > 0 ? " " : "", ranks[i]);
  return ranks.empty() ? "-" : ranks.size() > most ? cat(text, " ...") : text;
}

std::string pass_text(const RankState::Lane& lane) {
  if (lane.pass == FlightPass::none) return "";
  std::string text = flight_name(lane.pass);
  if (lane.micro_batch >= 0) text += cat(" of micro-batch ", lane.micro_batch);
  if (lane.layer >= 0) text += cat(", layer ", lane.layer);
  return text;
}

std::string op_text(const RankState::Lane& lane) {
  std::string text = cat(flight_name(lane.op), " on axis ", axis_name(lane.axis));
  if (lane.peer >= 0) text += cat(lane.op == FlightOp::send ? " to rank " : " from rank ", lane.peer);
  if (lane.sequence > 0) text += cat(" #", lane.sequence);
  return text + cat(" (", lane.num_bytes, " bytes)");
}

// What the rank does or did last.
std::string doing(const RankState& state) {
  std::string text =
      cat("step ", state.step, ", main thread ", flight_name(state.phase), " for ", std::lround(state.phase_s), " s");
  const RankState::Lane& compute = state.lanes[0];
  if (compute.pass != FlightPass::none) text += cat("; last ", pass_text(compute));
  for (const RankState::Lane& lane : state.lanes) {
    if (lane.is_inside) text += cat("; in ", op_text(lane), " for ", std::lround(lane.seconds), " s");
  }
  return text;
}

const char* process_text(ProcessState process) {
  switch (process) {
    case ProcessState::alive:
      return "alive";
    case ProcessState::stopped:
      return "STOPPED";
    case ProcessState::gone:
      return "GONE";
    case ProcessState::unknown:
      return "unknown";
  }
  return "unknown";
}

}  // namespace

std::vector<RankState> read_rank_states(const std::string& folder, const GridShape& shape,
                                        const std::string& own_host) {
  std::vector<RankState> states(static_cast<std::size_t>(shape.data * shape.tensor * shape.pipeline));
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    states[rank].world_rank = static_cast<int>(rank);
    const FlightReader reader(FlightRecorder::path(folder, static_cast<std::int64_t>(rank)));
    if (reader.readable() && reader.record().world_rank == static_cast<std::int64_t>(rank)) {
      states[rank] = state_of(reader.record(), shape, own_host);
    }
  }
  return states;
}

std::vector<Suspect> sort_by_suspicion(const std::vector<RankState>& states, const GridShape& shape) {
  std::vector<Suspect> suspects(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    suspects[i].state = states[i];
    suspects[i].waits_for = awaited(states[i], states, shape);
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (const int rank : suspects[i].waits_for) {
      suspects[static_cast<std::size_t>(rank)].awaited_by.push_back(static_cast<int>(i));
    }
  }
  for (Suspect& suspect : suspects) {
    const auto num_waiting = static_cast<double>(suspect.awaited_by.size());
    const auto num_ranks = static_cast<double>(states.size());
    suspect.suspicion = num_waiting;
    if (!is_between_ranks(suspect.state) && num_waiting > 0) suspect.suspicion += 2 * num_ranks;
    if (!suspect.state.is_readable) suspect.suspicion += 4 * num_ranks;
    if (suspect.state.process == ProcessState::stopped) suspect.suspicion += 8 * num_ranks;
    if (suspect.state.process == ProcessState::gone) suspect.suspicion += 16 * num_ranks;
  }
  std::stable_sort(suspects.begin(), suspects.end(), [](const Suspect& a, const Suspect& b) {
    if (a.suspicion != b.suspicion) return a.suspicion > b.suspicion;
    return a.state.step != b.state.step ? a.state.step < b.state.step : a.state.progress < b.state.progress;
  });
  return suspects;
}

std::string accusation(const Suspect& suspect) {
  const RankState& state = suspect.state;
  if (!state.is_readable) return cat("rank ", state.world_rank, " has no readable status file");
  const char* what = state.process == ProcessState::stopped ? "is stopped"
                     : state.process == ProcessState::gone  ? "is gone"
                     : is_between_ranks(state)              ? "is waited for"
                                                            : "does not come";
  return cat("rank ", state.world_rank, " on ", state.host, " (pid ", state.pid, ") ", what, ": ", doing(state), "; ",
             suspect.awaited_by.size(), " rank(s) wait for it");
}

std::string hang_table(const std::vector<Suspect>& suspects) {
  std::string table = "  rank  host              pid      process  awaited by         waits for          doing\n";
  for (const Suspect& suspect : suspects) {
    const RankState& state = suspect.state;
    std::array<char, 160> head{};
    std::snprintf(head.data(), head.size(), "%6d  %-16s  %-7lld  %-7s  %-17s  %-17s  ", state.world_rank,
                  state.host.c_str(), static_cast<long long>(state.pid), process_text(state.process),
                  rank_list(suspect.awaited_by).c_str(), rank_list(suspect.waits_for).c_str());
    table += cat(head.data(), state.is_readable ? doing(state) : "no readable status file", "\n");
  }
  return table;
}

}  // namespace potato
