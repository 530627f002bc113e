// Streams, events, host tasks and memory of a GPU.
#include <chrono>
#include <thread>

#include "potato/kernels/elementwise.hpp"
#include "potato/tensor/mirrored.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

TEST_CASE("a host task runs in stream order, and the stream waits for it", "[gpu]") {
  Gpu on;
  Arena pinned(Device{}, "pinned", 1 << 20, HostMemory::pinned);
  const Mirrored x(on.arena, pinned, DType::f32, {1000});
  float* values = x.host().as<float>();
  for (int round = 0; round < 2000; ++round) {
    fill(x.device(), round, on.stream);
    x.to_host(on.stream);
    on.stream.enqueue([values, round] {
      if (round % 97 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      // What the stream wrote is here, and what is written here the stream sees.
      for (int i = 0; i < 1000; ++i) values[i] = values[i] == static_cast<float>(round) ? values[i] + 1 : -1;
    });
    x.to_device(on.stream);
    add_to(x.device(), x.device(), on.stream);
    x.to_host(on.stream);
    if (round % 400 != 0) continue;
    on.stream.synchronize();
    CHECK(values[0] == static_cast<float>(2 * (round + 1)));
    CHECK(values[999] == static_cast<float>(2 * (round + 1)));
  }
}

TEST_CASE("host tasks of two streams do not wait for each other", "[gpu]") {
  Gpu on;
  Stream other(gpu, {});
  std::atomic<int> flag{0};
  on.stream.enqueue([&flag] {
    while (flag.load() == 0) std::this_thread::yield();  // only the other stream's task can end this
  });
  other.enqueue([&flag] { flag.store(1); });
  on.stream.synchronize();
  other.synchronize();
  CHECK(flag.load() == 1);
}

TEST_CASE("an event orders two streams", "[gpu]") {
  Gpu on(std::int64_t{3} << 30);
  Stream other(gpu, {});
  const Tensor large(on.arena, DType::f32, {std::int64_t{1} << 28});
  const Tensor small(on.arena, DType::f32, {4});
  Event done;
  for (int round = 1; round < 20; ++round) {
    for (int i = 0; i < 4; ++i) fill(large, round, on.stream);
    on.stream.record(done);
    other.wait(done);
    copy(large.view().rows((std::int64_t{1} << 28) - 4, 4), small, other);
    float got[4] = {};
    other.transfer(got, small.view().data, sizeof(got));
    other.synchronize();
    CHECK(got[3] == static_cast<float>(round));
  }
}

TEST_CASE("an error of a host task comes out of synchronize", "[gpu]") {
  Gpu on;
  on.stream.enqueue([] { throw Error("from a host task"); });
  CHECK_THROWS_WITH(on.stream.synchronize(), ContainsSubstring("from a host task"));
}

TEST_CASE("a stream's clock runs", "[gpu]") {
  Gpu on;
  double start_s = -1, stop_s = -1;
  on.stream.mark_time(&start_s);
  on.stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  on.stream.mark_time(&stop_s);
  on.stream.synchronize();
  CHECK(stop_s - start_s > 0.019);
  CHECK(stop_s - start_s < 0.5);
}

TEST_CASE("case-27: memory that a GPU does not have is refused with needed and available", "[gpu]") {
  CHECK_THROWS_WITH(Arena(gpu, "too much", std::int64_t{1} << 45), ContainsSubstring("bytes needed for too much"));
}

TEST_CASE("case-28: tensors of more than 2^31 elements", "[gpu]") {
  const std::int64_t num_elems = (std::int64_t{1} << 31) + 1000;
  Gpu on(num_elems * 6 + (1 << 20));
  const Tensor x(on.arena, DType::bf16, {num_elems});
  const Tensor y(on.arena, DType::f32, {num_elems});
  const Tensor norm(on.arena, DType::f64, {1});
  fill(x, 0, on.stream);
  fill(x.view().rows(num_elems - 8, 8), 3, on.stream);
  convert(x, y, on.stream);
  fill(norm, 0, on.stream);
  add_squared_norm(y, 1, norm, on.stream);
  double got = 0;
  on.stream.transfer(&got, norm.view().data, sizeof(got));
  on.stream.synchronize();
  CHECK(got == 72.0);
}
