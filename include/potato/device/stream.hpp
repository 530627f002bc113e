// Streams and events. Work enqueued on one stream runs in order; different streams are ordered only by events.
//
// A CPU stream is a bounded queue served by a thread of its own. Enqueueing never allocates: a task is a trivially
// copyable closure that is copied into a slot. A stream on device `dry` runs nothing and only accounts costs.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "potato/core/error.hpp"
#include "potato/device/device.hpp"

namespace potato {

class CpuQueue;

struct StreamOptions {
  std::string name = "stream";
  int threads = 1;                   // OpenMP threads that a task may use
  bool inline_mode = false;          // tasks run in the caller, at once
  std::int64_t random_delay_us = 0;  // tests: each task starts after a random delay of at most this
  std::uint64_t delay_seed = 0;
  // Called once, on the stream's thread, with the first error of a task. Without it the error is kept and rethrown by
  // the next synchronize(); the tasks behind it are skipped, events are still completed.
  std::function<void(std::exception_ptr)> on_error;
};

// What was enqueued, as the callers accounted for it; on every device.
struct StreamCosts {
  double flops = 0;
  double bytes = 0;  // read and written
};

// A point in a stream. Reusable; owned by the host. Must outlive the streams' use of it.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Blocks the host until the last recorded point was reached; returns at once if never recorded.
  void synchronize() const;

 private:
  friend class Stream;
  std::uint64_t recorded_ = 0;
  std::atomic<std::uint64_t> completed_{0};
};

class Stream {
 public:
  Stream(Device device, StreamOptions options);
  ~Stream();  // waits for the queue; a kept error is logged, never thrown
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) = delete;

  Device device() const noexcept { return device_; }
  int threads() const noexcept { return threads_; }

  // Host streams: runs `task()` on the stream. On `dry` the task is dropped.
  template <typename Task>
  void enqueue(const Task& task) {
    static_assert(std::is_trivially_copyable_v<Task>, "a task must capture only views, pointers and numbers");
    static_assert(sizeof(Task) <= slot_bytes, "the task's captures are too large for a slot");
    PC_CHECK(device_.kind != DeviceKind::cuda, "host task on a device stream");
    if (device_.kind == DeviceKind::dry) return;
    push([](void* closure) { (*static_cast<Task*>(closure))(); }, &task, sizeof(Task), false);
  }

  // Marks this point of the stream in `event`.
  void record(Event& event);
  // Later work of this stream starts only after the point last recorded in `event`.
  void wait(Event& event);
  // Blocks the host until all work is done; rethrows the first error of a task.
  void synchronize();

  void account(double flops, double bytes) noexcept {
    costs_.flops += flops;
    costs_.bytes += bytes;
  }
  StreamCosts costs() const noexcept { return costs_; }

  static constexpr std::size_t slot_bytes = 1000;

 private:
  void push(void (*invoke)(void*), const void* closure, std::size_t bytes, bool always);

  Device device_;
  int threads_;
  StreamCosts costs_;
  std::unique_ptr<CpuQueue> queue_;
};

}  // namespace potato
