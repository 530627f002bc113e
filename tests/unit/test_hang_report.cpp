// The flight recorder's file, and who is blamed for what it says.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "potato/core/flight_recorder.hpp"
#include "potato/train/hang_report.hpp"
#include "potato/train/stragglers.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

// 2 x 2 x 2 ranks, all of them inside all-reduce 12 of the world.
std::vector<RankState> all_in_world_reduce() {
  std::vector<RankState> states(8);
  for (int rank = 0; rank < 8; ++rank) {
    RankState& state = states[static_cast<std::size_t>(rank)];
    state.is_readable = true;
    state.world_rank = rank;
    state.process = ProcessState::alive;
    state.host = "node1";
    state.pid = 100 + rank;
    state.step = 7;
    state.phase = FlightPhase::waiting;
    state.entered[static_cast<std::size_t>(Axis::world)] = 12;
    state.lanes[0] = {FlightPass::backward, 1, 0, FlightOp::all_reduce, true, Axis::world, 12, -1, 40, 5};
  }
  return states;
}

const GridShape shape{2, 2, 2};

const Suspect& first(const std::vector<Suspect>& suspects) { return suspects.front(); }

}  // namespace

TEST_CASE("case-26: the rank that has not entered a collective is blamed", "[hang]") {
  auto states = all_in_world_reduce();
  RankState& culprit = states[5];
  culprit.entered[static_cast<std::size_t>(Axis::world)] = 11;
  culprit.lanes[0].is_inside = false;
  culprit.phase = FlightPhase::loading_data;
  culprit.phase_s = 30;
  const auto suspects = sort_by_suspicion(states, shape);
  CHECK(first(suspects).state.world_rank == 5);
  CHECK(first(suspects).awaited_by == std::vector<int>{0, 1, 2, 3, 4, 6, 7});
  CHECK_THAT(accusation(first(suspects)),
             ContainsSubstring("rank 5 on node1 (pid 105) does not come: step 7, main thread loading data for 30 s") &&
                 ContainsSubstring("7 rank(s) wait for it"));
}

TEST_CASE("case-26: of two ranks that wait for each other the one that more wait for is blamed", "[hang]") {
  auto states = all_in_world_reduce();
  RankState& culprit =
      states[2];  // left out the world's collective, and is in the next step's first on its tensor axis
  culprit.entered[static_cast<std::size_t>(Axis::world)] = 11;
  culprit.step = 8;
  culprit.lanes[0] = {FlightPass::forward, 0, 0, FlightOp::all_reduce, true, Axis::tensor, 50, -1, 8192, 5};
  for (const std::size_t rank : {std::size_t{2}, std::size_t{3}}) {
    states[rank].entered[static_cast<std::size_t>(Axis::tensor)] = rank == 2 ? 50 : 49;
  }
  const auto suspects = sort_by_suspicion(states, shape);
  CHECK(first(suspects).state.world_rank == 2);
  CHECK(first(suspects).waits_for == std::vector<int>{3});
  CHECK(suspects[1].state.world_rank == 3);
  CHECK_THAT(accusation(first(suspects)), ContainsSubstring("is waited for: step 8") &&
                                              ContainsSubstring("in all-reduce on axis tensor #50 (8192 bytes)"));
}

TEST_CASE("case-26: stopped and dead processes come first, unreadable files before ranks that wait", "[hang]") {
  auto states = all_in_world_reduce();
  states[6].process = ProcessState::stopped;
  states[3].process = ProcessState::gone;
  states[1] = RankState{};
  states[1].world_rank = 1;
  const auto suspects = sort_by_suspicion(states, shape);
  CHECK(suspects[0].state.world_rank == 3);
  CHECK(suspects[1].state.world_rank == 6);
  CHECK(suspects[2].state.world_rank == 1);
  CHECK_THAT(accusation(suspects[0]), ContainsSubstring("rank 3 on node1 (pid 103) is gone"));
  CHECK_THAT(accusation(suspects[1]), ContainsSubstring("is stopped"));
  CHECK_THAT(accusation(suspects[2]), ContainsSubstring("rank 1 has no readable status file"));
  const std::string table = hang_table(suspects);
  CHECK(std::count(table.begin(), table.end(), '\n') == 9);
}

TEST_CASE("a rank that receives waits for its peer", "[hang]") {
  auto states = all_in_world_reduce();
  for (RankState& state : states) state.lanes[0].is_inside = false;
  states[4].lanes[0] = {FlightPass::forward, 2, -1, FlightOp::receive, true, Axis::pipeline, 0, 0, 4096, 9};
  const auto suspects = sort_by_suspicion(states, shape);
  CHECK(first(suspects).state.world_rank == 0);
  CHECK(first(suspects).awaited_by == std::vector<int>{4});
}

TEST_CASE("another process reads what a flight recorder holds", "[hang]") {
  const std::string folder = (std::filesystem::temp_directory_path() / cat("potato_flight_", getpid())).string();
  std::filesystem::create_directory(folder);
  {
    FlightRecorder recorder(folder, {77, 3, {1, 0, 1}});
    recorder.set_step(12);
    recorder.set_phase(FlightPhase::waiting);
    recorder.set_pass(0, FlightPass::backward, 2, 9);
    recorder.begin(1, static_cast<int>(Axis::data), FlightOp::reduce_scatter, -1, 4096);
    const pid_t child = fork();
    if (child == 0) {
      const FlightReader reader(FlightRecorder::path(folder, 3));
      const bool is_right = reader.readable() && reader.record().run_id == 77 && reader.record().step == 12 &&
                            reader.record().pid == getppid() && reader.record().lanes[0].layer == 9 &&
                            reader.record().lanes[1].inside == 1 &&
                            reader.record().entered[static_cast<std::size_t>(Axis::data)] == 1;
      _exit(is_right ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    const auto states = read_rank_states(folder, {2, 2, 1}, "another host");
    REQUIRE(states.size() == 4);
    CHECK(states[3].is_readable);
    CHECK(states[3].process == ProcessState::unknown);
    CHECK(states[3].lanes[1].op == FlightOp::reduce_scatter);
    CHECK(states[3].lanes[1].is_inside);
    CHECK(!states[0].is_readable);
    recorder.end(1, static_cast<int>(Axis::data));
    CHECK(!read_rank_states(folder, {2, 2, 1}, "another host")[3].lanes[1].is_inside);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("a straggler is measured against the ranks of its own stage", "[hang]") {
  std::vector<RankTimes> times(8);
  const std::vector<std::string> hosts(8, "node1");
  for (std::size_t rank = 0; rank < 8; ++rank) times[rank].forward_s = rank < 4 ? 0.010 : 0.030;  // stages differ
  CHECK(straggler(times, shape, hosts, 1.3).empty());
  times[6].backward_s = 0.030;
  CHECK_THAT(straggler(times, shape, hosts, 1.3),
             ContainsSubstring("rank 6 on node1: 60.0 ms a step, 2.0 times the median"));
  times[1].data_loading_s = 0.050;
  CHECK_THAT(straggler(times, shape, hosts, 1.3), ContainsSubstring("rank 1 on node1: 50.0 ms a step, 5.0 times"));
  CHECK_THAT(spread(times),
             ContainsSubstring("forward 10.0 / 10.0 / 30.0") && ContainsSubstring("loading 0.0 / 0.0 / 50.0"));
}

TEST_CASE("run.debug_fault", "[hang]") {
  CHECK(parse_fault("none").kind == Fault::Kind::none);
  const Fault fault = parse_fault("3:12:data_sleep");
  CHECK(fault.rank == 3);
  CHECK(fault.step == 12);
  CHECK(fault.kind == Fault::Kind::data_sleep);
  for (const char* text : {"", "3", "3:12", "3:12:", "3:12:sleep", "a:1:stop", "3-1-stop"}) {
    CHECK_THROWS_AS(parse_fault(text), ConfigError);
  }
}
