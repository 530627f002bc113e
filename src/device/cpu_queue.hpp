// A bounded queue of host tasks with a thread of its own: what a CPU stream is, and what runs a CUDA stream's host
// tasks.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "potato/device/stream.hpp"

namespace potato {

// One producer (the rank's main thread), one consumer (the queue's thread).
class CpuQueue {
 public:
  explicit CpuQueue(StreamOptions options);
  ~CpuQueue();  // runs what is queued; a kept error is logged
  CpuQueue(const CpuQueue&) = delete;
  CpuQueue& operator=(const CpuQueue&) = delete;

  // Copies the closure. A task that is not `always` is skipped after an error. Blocks while the queue is full.
  void push(void (*invoke)(void*), const void* closure, std::size_t bytes, bool always, bool last = false);
  template <typename Task>
  void push_always(const Task& task) {
    push([](void* closure) { (*static_cast<Task*>(closure))(); }, &task, sizeof(Task), true);
  }
  // Waits until the queue is empty; rethrows the first error.
  void synchronize();

  static constexpr std::size_t num_slots = 1024;

 private:
  struct Slot {
    void (*invoke)(void*) = nullptr;
    bool always = false;
    bool last = false;
    alignas(std::max_align_t) std::byte closure[Stream::slot_bytes];
  };

  void serve();
  void run(Slot& slot);
  void delay();

  StreamOptions options_;
  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> head_{0};  // tasks pushed
  std::atomic<std::uint64_t> done_{0};  // tasks finished
  bool failed_ = false;
  std::exception_ptr error_;
  std::uint64_t num_delays_ = 0;
  std::thread thread_;
};

}  // namespace potato
