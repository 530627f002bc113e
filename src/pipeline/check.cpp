#include "potato/pipeline/check.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "potato/core/error.hpp"

namespace potato {

namespace {

// Index of (chunk, micro-batch) in a table of all pairs.
std::size_t pair_index(const Schedule& schedule, int chunk, int micro_batch) {
  return static_cast<std::size_t>(chunk) * static_cast<std::size_t>(schedule.num_micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

// Virtual stages of a schedule and the neighbours that a pass talks with.
struct VirtualStages {
  explicit VirtualStages(const Schedule& schedule)
      : num_stages(schedule.num_stages), last(schedule.num_stages * schedule.num_chunks - 1) {}

  int of(int stage, const Pass& pass) const { return pass.chunk * num_stages + stage; }
  int stage_of(int virtual_stage) const { return virtual_stage % num_stages; }

  // Where the input of a pass comes from and where its result goes; -1: nowhere.
  int source(int stage, const Pass& pass) const {
    const int here = of(stage, pass);
    if (pass.kind == PassKind::forward) return here - 1;
    return pass.kind == PassKind::backward && here < last ? here + 1 : -1;
  }
  int destination(int stage, const Pass& pass) const {
    const int here = of(stage, pass);
    if (pass.kind == PassKind::forward) return here < last ? here + 1 : -1;
    return pass.kind == PassKind::backward ? here - 1 : -1;
  }

  int num_stages, last;
};

// When the items of one channel were sent, and received.
struct Channel {
  std::vector<double> sent, received;
};

// The channels that leave a virtual stage: [virtual stage][PassKind::forward or backward].
using Channels = std::vector<std::array<Channel, 2>>;

Channel& channel_from(Channels& channels, int virtual_stage, PassKind kind) {
  return channels[static_cast<std::size_t>(virtual_stage)][static_cast<std::size_t>(kind)];
}

std::string place(int stage, std::size_t position, const Pass& pass) {
  return cat("stage ", stage, ", position ", position, " (", describe(pass), "): ");
}

bool indices_in_range(const Schedule& schedule, std::vector<std::string>& problems) {
  const std::size_t before = problems.size();
  const auto& [num_stages, num_micro_batches, num_chunks, stages] = schedule;
  if (num_stages < 1 || num_micro_batches < 1 || num_chunks < 1) {
    problems.push_back(cat("a schedule needs at least one stage, micro-batch and chunk, not ", num_stages, ", ",
                           num_micro_batches, " and ", num_chunks));
  } else if (stages.size() != static_cast<std::size_t>(num_stages)) {
    problems.push_back(cat("a schedule of ", num_stages, " stages has lists for ", stages.size()));
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (std::size_t i = 0; i < stages[s].size(); ++i) {
      const Pass& pass = stages[s][i];
      const auto report = [&](const std::string& what) {
        problems.push_back(place(static_cast<int>(s), i, pass) + what);
      };
      if (pass.micro_batch < 0 || pass.micro_batch >= num_micro_batches) {
        report(cat("the micro-batch is out of range, 0 to ", num_micro_batches - 1));
      }
      if (pass.chunk < 0 || pass.chunk >= num_chunks) report(cat("the chunk is out of range, 0 to ", num_chunks - 1));
      if (pass.kind > PassKind::weight_gradient) report("there is no such kind of pass");
    }
  }
  return problems.size() == before;
}

// Checks one stage's list: each pass once, in order. Returns the most pairs alive.
int check_stage(const Schedule& schedule, int stage, bool is_split, std::vector<std::string>& problems) {
  const std::vector<Pass>& passes = schedule.stages[static_cast<std::size_t>(stage)];
  constexpr int absent = -1;
  std::vector<std::array<int, 3>> positions(
      static_cast<std::size_t>(schedule.num_micro_batches) * static_cast<std::size_t>(schedule.num_chunks),
      {absent, absent, absent});  // [chunk, micro-batch][kind]
  const PassKind last_kind = is_split ? PassKind::weight_gradient : PassKind::backward;
  int num_alive = 0;
  int max_alive = 0;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass& pass = passes[i];
    auto& seen = positions[pair_index(schedule, pass.chunk, pass.micro_batch)];
    const auto kind = static_cast<std::size_t>(pass.kind);
    if (seen[kind] != absent) {
      problems.push_back(cat(place(stage, i, pass), "was done before, at position ", seen[kind]));
      continue;
    }
    seen[kind] = static_cast<int>(i);
    if (kind > 0 && seen[kind - 1] == absent) {
      problems.push_back(cat(place(stage, i, pass), "comes before its ", kind == 1 ? "forward" : "backward"));
    }
    if (pass.kind == PassKind::forward) max_alive = std::max(max_alive, ++num_alive);
    if (pass.kind == last_kind) --num_alive;
  }
  for (int chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    for (int micro_batch = 0; micro_batch < schedule.num_micro_batches; ++micro_batch) {
      const auto& seen = positions[pair_index(schedule, chunk, micro_batch)];
      for (std::size_t kind = 0; kind <= static_cast<std::size_t>(last_kind); ++kind) {
        if (seen[kind] != absent) continue;
        const Pass missing{static_cast<PassKind>(kind), micro_batch, chunk};
        problems.push_back(cat(place(stage, passes.size(), missing), "is missing when the list ends"));
      }
    }
  }
  return max_alive;
}

// Every item that is sent has to be the one that the receiver takes next. Names the first difference of each channel.
void check_channels(const Schedule& schedule, std::vector<std::string>& problems) {
  struct Item {
    int micro_batch;
    std::size_t position;
  };
  const VirtualStages stages(schedule);
  const auto num_virtual = static_cast<std::size_t>(stages.last) + 1;
  std::array<std::vector<std::vector<Item>>, 2> sends, receives;  // [kind][virtual stage of the sender]
  for (std::size_t kind = 0; kind < 2; ++kind) {
    sends[kind].resize(num_virtual);
    receives[kind].resize(num_virtual);
  }
  for (int s = 0; s < schedule.num_stages; ++s) {
    const std::vector<Pass>& passes = schedule.stages[static_cast<std::size_t>(s)];
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const auto kind = static_cast<std::size_t>(passes[i].kind);
      const int source = stages.source(s, passes[i]);
      const Item item{passes[i].micro_batch, i};
      if (source >= 0) receives[kind][static_cast<std::size_t>(source)].push_back(item);
      if (stages.destination(s, passes[i]) >= 0) {
        sends[kind][static_cast<std::size_t>(stages.of(s, passes[i]))].push_back(item);
      }
    }
  }
  for (const PassKind kind : {PassKind::forward, PassKind::backward}) {
    const char* what = kind == PassKind::forward ? "activation" : "gradient";
    for (int from = 0; from <= stages.last; ++from) {
      const int to = kind == PassKind::forward ? from + 1 : from - 1;
      const auto& sent = sends[static_cast<std::size_t>(kind)][static_cast<std::size_t>(from)];
      const auto& taken = receives[static_cast<std::size_t>(kind)][static_cast<std::size_t>(from)];
      const auto different = std::ranges::mismatch(
          sent, taken, [](const Item& a, const Item& b) { return a.micro_batch == b.micro_batch; });
      const bool is_sent = different.in1 != sent.end();
      const bool is_taken = different.in2 != taken.end();
      const auto where = [&](int virtual_stage, const Item& item) {
        return place(stages.stage_of(virtual_stage), item.position,
                     {kind, item.micro_batch, virtual_stage / stages.num_stages});
      };
      if (is_sent && is_taken) {
        problems.push_back(cat(where(to, *different.in2), "would receive the ", what, " of micro-batch ",
                               different.in1->micro_batch, ", which stage ", stages.stage_of(from),
                               " sends at position ", different.in1->position));
      } else if (is_sent) {
        problems.push_back(cat(where(from, *different.in1), "nobody receives the ", what, " that it sends"));
      } else if (is_taken) {
        problems.push_back(cat(where(to, *different.in2), "nobody sends the ", what, " that it needs"));
      }
    }
  }
}

void check_progress(const Schedule& schedule, std::vector<std::string>& problems) {
  const VirtualStages stages(schedule);
  const Simulation simulation = simulate(schedule);
  for (int s = 0; s < schedule.num_stages; ++s) {
    const auto index = static_cast<std::size_t>(s);
    const auto position = static_cast<std::size_t>(simulation.num_done[index]);
    if (position == schedule.stages[index].size()) continue;
    const Pass& pass = schedule.stages[index][position];
    const bool in_send = simulation.blocked_in_send[index];
    const int peer = in_send ? stages.destination(s, pass) : stages.source(s, pass);
    problems.push_back(cat(place(s, position, pass), "deadlock: it waits for stage ", stages.stage_of(peer), " to ",
                           in_send ? "receive what the channel already holds" : "send its input"));
  }
}

}  // namespace

Simulation simulate(const Schedule& schedule, const PassCosts& costs, int capacity) {
  PC_CHECK(capacity >= 1, "capacity = ", capacity);
  const VirtualStages stages(schedule);
  const auto num_stages = static_cast<std::size_t>(schedule.num_stages);
  Simulation result{std::vector<int>(num_stages), std::vector<bool>(num_stages), std::vector<double>(num_stages), 0};
  Channels channels(static_cast<std::size_t>(stages.last) + 1);
  std::vector<double> clock(num_stages);

  // Runs the pass up to its send; false where its input has not been sent.
  const auto compute = [&](int stage, const Pass& pass) {
    double& now = clock[static_cast<std::size_t>(stage)];
    const int source = stages.source(stage, pass);
    if (source >= 0) {
      Channel& channel = channel_from(channels, source, pass.kind);
      const std::size_t item = channel.received.size();
      if (item == channel.sent.size()) return false;
      now = std::max(now, channel.sent[item]);
      channel.received.push_back(now);
    }
    const double cost = pass.kind == PassKind::forward    ? costs.forward
                        : pass.kind == PassKind::backward ? costs.backward
                                                          : costs.weight_gradient;
    now += cost;
    result.busy[static_cast<std::size_t>(stage)] += cost;
    result.end_time = std::max(result.end_time, now);
    return true;
  };
  // False where the channel is full.
  const auto send = [&](int stage, const Pass& pass) {
    if (stages.destination(stage, pass) < 0) return true;
    Channel& channel = channel_from(channels, stages.of(stage, pass), pass.kind);
    double& now = clock[static_cast<std::size_t>(stage)];
    if (channel.sent.size() >= static_cast<std::size_t>(capacity)) {
      const std::size_t before = channel.sent.size() - static_cast<std::size_t>(capacity);
      if (before >= channel.received.size()) return false;
      now = std::max(now, channel.received[before]);
    }
    channel.sent.push_back(now);
    return true;
  };

  // The order in which stages are visited does not change the result: every channel has one sender and one receiver.
  for (bool any_progress = true; any_progress;) {
    any_progress = false;
    for (std::size_t s = 0; s < num_stages; ++s) {
      const std::vector<Pass>& passes = schedule.stages[s];
      while (static_cast<std::size_t>(result.num_done[s]) < passes.size()) {
        const Pass& pass = passes[static_cast<std::size_t>(result.num_done[s])];
        if (!result.blocked_in_send[s]) {
          if (!compute(static_cast<int>(s), pass)) break;
          any_progress = true;
        }
        result.blocked_in_send[s] = !send(static_cast<int>(s), pass);
        if (result.blocked_in_send[s]) break;
        any_progress = true;
        ++result.num_done[s];
      }
    }
  }
  return result;
}

ScheduleReport check_schedule(const Schedule& schedule) {
  ScheduleReport report;
  if (!indices_in_range(schedule, report.problems)) return report;
  const bool is_split = std::ranges::any_of(schedule.stages, [](const std::vector<Pass>& passes) {
    return std::ranges::any_of(passes, [](const Pass& pass) { return pass.kind == PassKind::weight_gradient; });
  });
  for (int s = 0; s < schedule.num_stages; ++s) {
    report.max_alive.push_back(check_stage(schedule, s, is_split, report.problems));
  }
  const bool each_pass_once = report.problems.empty();
  check_channels(schedule, report.problems);
  if (each_pass_once) check_progress(schedule, report.problems);
  return report;
}

}  // namespace potato
