// Pipeline schedules: all three over many sizes, followed by real queues, and broken ones that the checker must reject.

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <tuple>

#include "potato/core/error.hpp"
#include "potato/pipeline/check.hpp"
#include "potato/pipeline/schedule.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

constexpr PassKind F = PassKind::forward;
constexpr PassKind B = PassKind::backward;
constexpr PassKind W = PassKind::weight_gradient;

// Calls check(schedule) for every schedule with so many stages, micro-batches and chunks at most.
template <typename Check>
void for_each_schedule(int max_stages, int max_micro_batches, int max_chunks, const Check& check) {
  for (int p = 1; p <= max_stages; ++p) {
    for (int m = 1; m <= max_micro_batches; ++m) {
      check(gpipe_schedule(p, m));
      check(one_f_one_b_schedule(p, m));
      if (m % p != 0) continue;
      for (int chunks = 1; chunks <= max_chunks; ++chunks) check(interleaved_schedule(p, m, chunks));
    }
  }
}

// Follows a schedule the way ranks would, visiting the stages in a random order, with a queue for each channel. An
// item is the list of the virtual stages that it has passed and its micro-batch. Returns whether everything was done
// with the right items.
bool follow(const Schedule& schedule, unsigned seed) {
  struct Item {
    int micro_batch;
    std::vector<int> visited;
  };
  const int last = schedule.num_stages * schedule.num_chunks - 1;
  std::map<std::tuple<int, int, PassKind>, std::deque<Item>> queues;  // from, to, kind
  std::vector<std::size_t> position(schedule.stages.size());
  std::mt19937 random(seed);
  std::vector<std::size_t> order(schedule.stages.size());
  for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
  for (bool any_progress = true; any_progress;) {
    any_progress = false;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t s : order) {
      if (position[s] == schedule.stages[s].size()) continue;
      const Pass& pass = schedule.stages[s][position[s]];
      const int here = pass.chunk * schedule.num_stages + static_cast<int>(s);
      const int step = pass.kind == F ? 1 : -1;
      const bool is_first = pass.kind == F ? here == 0 : here == last;
      const bool is_last = pass.kind == F ? here == last : here == 0;
      auto& in = queues[{here - step, here, pass.kind}];
      auto& out = queues[{here, here + step, pass.kind}];
      // Here a pass waits for room before it starts, not after its end: stricter than the executor.
      if (!is_last && out.size() > static_cast<std::size_t>(channel_capacity)) return false;
      if (!is_first && in.empty()) continue;
      if (!is_last && out.size() == static_cast<std::size_t>(channel_capacity)) continue;
      Item item{pass.micro_batch, {}};
      if (!is_first) {
        item = in.front();
        in.pop_front();
      }
      const int expected = pass.kind == F ? here : last - here;
      if (item.micro_batch != pass.micro_batch || static_cast<int>(item.visited.size()) != expected) return false;
      item.visited.push_back(here);
      if (!is_last) out.push_back(item);
      ++position[s];
      any_progress = true;
    }
  }
  for (std::size_t s = 0; s < position.size(); ++s) {
    if (position[s] != schedule.stages[s].size()) return false;
  }
  return true;
}

Schedule two_stages(std::vector<Pass> first, std::vector<Pass> second, int num_micro_batches) {
  return {2, num_micro_batches, 1, {std::move(first), std::move(second)}};
}

bool names(const ScheduleReport& report, const std::string& text) {
  return std::ranges::any_of(report.problems, [&](const std::string& p) { return p.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("all schedules pass the checker and keep few micro-batches alive", "[schedule]") {
  int num_checked = 0;
  for_each_schedule(16, 64, 4, [&](const Schedule& schedule) {
    const ScheduleReport report = check_schedule(schedule);
    INFO(schedule.num_stages << " stages, " << schedule.num_micro_batches << " micro-batches, " << schedule.num_chunks
                             << " chunks: " << (report.ok() ? "" : report.problems.front()));
    if (!report.ok()) FAIL();
    ++num_checked;
  });
  CHECK(num_checked == 2 * 16 * 64 + 4 * (64 + 32 + 21 + 16 + 12 + 10 + 9 + 8 + 7 + 6 + 5 + 5 + 4 + 4 + 4 + 4));
}

TEST_CASE("micro-batches alive on each stage", "[schedule]") {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      const std::vector<int> all = check_schedule(gpipe_schedule(p, m)).max_alive;
      const std::vector<int> few = check_schedule(one_f_one_b_schedule(p, m)).max_alive;
      for (int s = 0; s < p; ++s) {
        if (all[static_cast<std::size_t>(s)] != m) FAIL("gpipe, stage " << s << " of " << p << ", " << m);
        if (few[static_cast<std::size_t>(s)] != std::min(m, p - s))
          FAIL("1f1b, stage " << s << " of " << p << ", " << m);
      }
      if (m % p != 0) continue;
      for (int chunks = 2; chunks <= 4; ++chunks) {
        const std::vector<int> alive = check_schedule(interleaved_schedule(p, m, chunks)).max_alive;
        for (int s = 0; s < p; ++s) {
          const int expected = std::min(m * chunks, (p - s - 1) * 2 + (chunks - 1) * p + 1);
          if (alive[static_cast<std::size_t>(s)] != expected) {
            FAIL("interleaved, stage " << s << " of " << p << ", " << m << ", " << chunks << " chunks");
          }
        }
      }
    }
  }
}

TEST_CASE("schedules carry every micro-batch through all virtual stages in order", "[schedule]") {
  unsigned seed = 0;
  for_each_schedule(6, 18, 3, [&](const Schedule& schedule) {
    if (!follow(schedule, ++seed)) {
      FAIL(schedule.num_stages << " stages, " << schedule.num_micro_batches << " micro-batches, " << schedule.num_chunks
                               << " chunks");
    }
  });
}

TEST_CASE("bubbles are those of the formulas, and buffers of one item cost no time", "[schedule]") {
  for (const double backward : {1.0, 2.0, 3.5}) {
    for_each_schedule(8, 32, 4, [&](const Schedule& schedule) {
      const double p = schedule.num_stages;
      const double m = schedule.num_micro_batches;
      const double chunks = schedule.num_chunks;
      const double expected = (p - 1) / (m * chunks + p - 1);
      const double found = bubble_fraction(schedule, backward);
      const PassCosts costs{1, backward, 0};
      const double limited = simulate(schedule, costs).end_time;
      const double unlimited = simulate(schedule, costs, 1 << 20).end_time;
      if (std::abs(found - expected) > 1e-12 || std::abs(limited - unlimited) > 1e-9 * limited) {
        FAIL(p << " stages, " << m << " micro-batches, " << chunks << " chunks: bubble " << found << ", formula "
               << expected << ", time " << limited << " and without limit " << unlimited);
      }
    });
  }
}

TEST_CASE("known small schedules", "[schedule]") {
  const Schedule plain = one_f_one_b_schedule(2, 3);
  CHECK(plain.stages[0] == std::vector<Pass>{{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {F, 2, 0}, {B, 1, 0}, {B, 2, 0}});
  CHECK(plain.stages[1] == std::vector<Pass>{{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}, {F, 2, 0}, {B, 2, 0}});
  const Schedule interleaved = interleaved_schedule(2, 2, 2);
  CHECK(interleaved.stages[0] ==
        std::vector<Pass>{{F, 0, 0}, {F, 1, 0}, {F, 0, 1}, {F, 1, 1}, {B, 0, 1}, {B, 1, 1}, {B, 0, 0}, {B, 1, 0}});
  CHECK(interleaved.stages[1] ==
        std::vector<Pass>{{F, 0, 0}, {F, 1, 0}, {F, 0, 1}, {B, 0, 1}, {F, 1, 1}, {B, 1, 1}, {B, 0, 0}, {B, 1, 0}});
  CHECK(interleaved_schedule(3, 6, 1).stages == one_f_one_b_schedule(3, 6).stages);
}

TEST_CASE("sizes that no schedule has are refused", "[schedule]") {
  CHECK_THROWS_AS(gpipe_schedule(0, 1), ConfigError);
  CHECK_THROWS_AS(one_f_one_b_schedule(1, 0), ConfigError);
  CHECK_THROWS_AS(interleaved_schedule(1, 1, 0), ConfigError);
  CHECK_THROWS_WITH(interleaved_schedule(4, 10, 2), ContainsSubstring("not 10") && ContainsSubstring("8 and 12"));
}

TEST_CASE("the checker rejects a pass that is missing, doubled or too early, whichever it is", "[schedule]") {
  for (const Schedule& good :
       {gpipe_schedule(2, 3), one_f_one_b_schedule(3, 4), interleaved_schedule(2, 4, 2), one_f_one_b_schedule(1, 2)}) {
    for (std::size_t s = 0; s < good.stages.size(); ++s) {
      for (std::size_t i = 0; i < good.stages[s].size(); ++i) {
        const Pass pass = good.stages[s][i];
        Schedule bad = good;
        bad.stages[s].erase(bad.stages[s].begin() + static_cast<std::ptrdiff_t>(i));
        CHECK(names(check_schedule(bad),
                    cat("stage ", s, ", position ", bad.stages[s].size(), " (", describe(pass), "): is missing")));
        bad = good;
        bad.stages[s].push_back(pass);
        CHECK(names(check_schedule(bad), cat("stage ", s, ", position ", good.stages[s].size(), " (", describe(pass),
                                             "): was done before, at position ", i)));
        if (pass.kind == F) continue;
        bad.stages[s] = good.stages[s];
        std::rotate(bad.stages[s].begin(), bad.stages[s].begin() + static_cast<std::ptrdiff_t>(i),
                    bad.stages[s].begin() + static_cast<std::ptrdiff_t>(i) + 1);
        CHECK(names(check_schedule(bad),
                    cat("stage ", s, ", position 0 (", describe(pass), "): comes before its forward")));
      }
    }
  }
}

TEST_CASE("the checker rejects indices out of range and lists that do not fit", "[schedule]") {
  Schedule schedule = one_f_one_b_schedule(2, 3);
  schedule.stages[1][2].chunk = 1;
  CHECK(
      names(check_schedule(schedule), "stage 1, position 2 (forward of micro-batch 1, chunk 1): the chunk is out of"));
  schedule.stages[1][2] = {F, -1, 0};
  CHECK(names(check_schedule(schedule), "the micro-batch is out of range, 0 to 2"));
  schedule.stages[1][2] = {static_cast<PassKind>(7), 1, 0};
  CHECK(names(check_schedule(schedule), "no such kind"));
  schedule = one_f_one_b_schedule(2, 3);
  schedule.stages.pop_back();
  CHECK_FALSE(check_schedule(schedule).ok());
  CHECK_FALSE(check_schedule({0, 1, 1, {}}).ok());
  CHECK_FALSE(check_schedule({1, 1, 1, {{}}}).ok());
}

TEST_CASE("the checker rejects receives in another order than the sends", "[schedule]") {
  Schedule schedule = gpipe_schedule(2, 3);
  std::swap(schedule.stages[1][0], schedule.stages[1][1]);
  ScheduleReport report = check_schedule(schedule);
  REQUIRE(report.problems.size() == 1);
  CHECK(names(report,
              "stage 1, position 0 (forward of micro-batch 1, chunk 0): would receive the activation of "
              "micro-batch 0, which stage 0 sends at position 0"));
  schedule = gpipe_schedule(3, 3);
  std::swap(schedule.stages[1][4], schedule.stages[1][5]);  // its gradients: wrong for both neighbours
  report = check_schedule(schedule);
  CHECK(report.problems.size() == 2);
  CHECK(names(report, "stage 1, position 4 (backward of micro-batch 2, chunk 0): would receive the gradient"));
  CHECK(names(report, "stage 0, position 4 (backward of micro-batch 1, chunk 0): would receive the gradient"));
  CHECK_FALSE(follow(schedule, 1));
}

TEST_CASE("the checker rejects deadlocks", "[schedule]") {
  // Stage 0 wants a gradient before it sends what stage 1 wants before it makes one.
  const Schedule circle = two_stages({{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}},  //
                                     {{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}}, 2);
  ScheduleReport report = check_schedule(circle);
  CHECK(report.problems.size() == 2);
  CHECK(names(report,
              "stage 0, position 1 (backward of micro-batch 0, chunk 0): deadlock: it waits for stage 1 to send"));
  CHECK(
      names(report, "stage 1, position 1 (forward of micro-batch 1, chunk 0): deadlock: it waits for stage 0 to send"));
  CHECK_FALSE(follow(circle, 1));
  CHECK_THROWS_AS(bubble_fraction(circle), Error);

  // One stage that sends itself more than the channel holds; two buffers would do.
  const Schedule full{
      1, 2, 2, {{{F, 0, 0}, {F, 1, 0}, {F, 0, 1}, {F, 1, 1}, {B, 0, 1}, {B, 0, 0}, {B, 1, 1}, {B, 1, 0}}}};
  report = check_schedule(full);
  REQUIRE(report.problems.size() == 1);
  CHECK(names(report,
              "stage 0, position 1 (forward of micro-batch 1, chunk 0): deadlock: it waits for stage 0 to "
              "receive what the channel already holds"));
  CHECK(simulate(full, {}, 2).num_done == std::vector<int>{8});
}

TEST_CASE("weight-gradient passes come after their backward, for all pairs or none", "[schedule]") {
  const Schedule split = two_stages({{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {W, 0, 0}, {B, 1, 0}, {W, 1, 0}},
                                    {{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}, {W, 0, 0}, {W, 1, 0}}, 2);
  const ScheduleReport report = check_schedule(split);
  CHECK(report.problems.empty());
  CHECK(report.max_alive == std::vector<int>{2, 2});  // weight gradients keep the activations of both
  // Stage 1 works from 1 to 7; stage 0 from 0 to 2, waits for its gradients until 3 and 5 and ends at 7.
  CHECK(simulate(split, {1, 1, 1}).end_time == 7);
  CHECK(bubble_fraction(split) == Approx(2.0 / 14));
  CHECK(bubble_fraction(split) < bubble_fraction(one_f_one_b_schedule(2, 2)));

  Schedule bad = split;
  bad.stages[1].pop_back();
  CHECK(names(check_schedule(bad), "(weight gradient of micro-batch 1, chunk 0): is missing"));
  bad = split;
  std::swap(bad.stages[0][2], bad.stages[0][3]);
  CHECK(
      names(check_schedule(bad), "position 2 (weight gradient of micro-batch 0, chunk 0): comes before its backward"));
}
