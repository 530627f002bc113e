#include <array>
#include <vector>

#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

const Device cpu{DeviceKind::cpu, 0};
const Device dry{DeviceKind::dry, 0};

StreamOptions options(const char* name, std::int64_t delay_us = 0) {
  StreamOptions result;
  result.name = name;
  result.random_delay_us = delay_us;
  return result;
}

}  // namespace

TEST_CASE("a stream runs its tasks in order, more of them than its queue holds", "[device]") {
  Stream stream(cpu, options("order"));
  std::vector<int> seen;
  seen.reserve(5000);
  for (int i = 0; i < 5000; ++i) stream.enqueue([&seen, i] { seen.push_back(i); });
  stream.synchronize();
  REQUIRE(seen.size() == 5000);
  for (int i = 0; i < 5000; ++i) REQUIRE(seen[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("an event orders two streams, delayed at random", "[device]") {
  Stream producer(cpu, options("producer", 500));
  Stream consumer(cpu, options("consumer", 500));
  Event filled;
  Event drained;
  int value = 0;
  int wrong = 0;
  for (int i = 1; i <= 50; ++i) {
    producer.enqueue([&value, i] { value = i; });
    producer.record(filled);
    consumer.wait(filled);
    consumer.enqueue([&value, &wrong, i] { wrong += value != i; });
    consumer.record(drained);
    producer.wait(drained);
  }
  producer.synchronize();
  consumer.synchronize();
  CHECK(wrong == 0);
}

TEST_CASE("the first error of a stream is rethrown, later tasks are skipped, events still complete", "[device]") {
  Stream stream(cpu, options("faulty"));
  Event after;
  bool ran = false;
  stream.enqueue([] { throw Error("boom"); });
  stream.enqueue([&ran] { ran = true; });
  stream.record(after);
  after.synchronize();
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("boom"));
  CHECK_FALSE(ran);
}

TEST_CASE("a dry stream drops tasks and keeps costs", "[device]") {
  Stream stream(dry, options("dry"));
  bool ran = false;
  stream.enqueue([&ran] { ran = true; });
  stream.account(10, 20);
  stream.synchronize();
  CHECK_FALSE(ran);
  CHECK(stream.costs().flops == 10);
  CHECK(stream.costs().bytes == 20);
}

TEST_CASE("an arena of the size that a dry one counted holds the same sequence", "[device]") {
  // A mixed order of allocations and releases, twice.
  const auto play = [](Arena& arena) {
    std::vector<Tensor> live;
    for (std::int64_t i = 0; i < 200; ++i) {
      live.emplace_back(arena, DType::f32, Shape{(i * 37) % 101 + 1, 13});
      if (i % 3 == 2) live.erase(live.begin() + i % static_cast<std::int64_t>(live.size()));
    }
  };
  Arena counting(dry, "counting", 0);
  play(counting);
  Arena real(cpu, "real", counting.peak_bytes());
  play(real);
  CHECK(real.peak_bytes() == counting.peak_bytes());
  CHECK(real.used_bytes() == 0);
  Arena small(cpu, "small", counting.peak_bytes() - Arena::alignment_bytes);
  CHECK_THROWS_WITH(play(small), ContainsSubstring("arena small"));
}

TEST_CASE("tensors in an arena never overlap and give their memory back", "[device]") {
  Arena arena(cpu, "test", 1 << 16);
  const Tensor a(arena, DType::f32, {100});
  void* freed = nullptr;
  {
    const Tensor b(arena, DType::f32, {100});
    freed = b.view().data;
    CHECK(static_cast<char*>(b.view().data) >= static_cast<char*>(a.view().data) + 400);
  }
  const Tensor c(arena, DType::f32, {50});
  CHECK(c.view().data == freed);
}
