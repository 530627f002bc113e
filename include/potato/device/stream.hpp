// Streams and events. Work enqueued on one stream runs in order; different streams are ordered only by events.
//
// A CPU stream is a bounded queue served by a thread of its own. Enqueueing never allocates: a task is a trivially
// copyable closure that is copied into a slot. A CUDA stream is CUDA's, with such a queue beside it for host tasks. A
// stream on device `dry` runs nothing and only accounts costs.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "potato/core/error.hpp"
#include "potato/device/device.hpp"
#include "potato/device/profile.hpp"

namespace potato {

struct StreamOptions {
  std::string name = "stream";
  int threads = 1;                   // CPU: OpenMP threads that a task may use
  bool inline_mode = false;          // CPU: tasks run in the caller, at once
  std::int64_t random_delay_us = 0;  // tests: each host task starts after a random delay of at most this
  std::uint64_t delay_seed = 0;
  std::int64_t workspace_bytes = std::int64_t{64} << 20;  // CUDA: scratch that the stream claims itself
  bool allow_tf32 = false;  // CUDA: fp32 products may round their inputs to TF32 (10 bits of mantissa)
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
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Blocks the host until the last recorded point was reached; returns at once if never recorded.
  void synchronize() const;

  // What the event is on a device that is not the host; made when it is first recorded there.
  class Native {
   public:
    virtual ~Native() = default;
    virtual void synchronize() const = 0;
  };

 private:
  friend class Stream;
  friend class CpuStream;
  friend class CudaStream;
  std::uint64_t recorded_ = 0;
  std::atomic<std::uint64_t> completed_{0};
  std::unique_ptr<Native> native_;
};

// What a stream is on one kind of device; see Stream for the meaning of each call.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  // Copies `closure` and runs invoke(copy) on the host, in stream order.
  virtual void enqueue_host(void (*invoke)(void*), const void* closure, std::size_t bytes) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  virtual void synchronize() = 0;
  virtual void transfer(void* destination, const void* source, std::int64_t num_bytes) = 0;
  virtual void mark_time(double* time_s) = 0;
  // Names what is enqueued from here on, for profilers.
  virtual void name_operation(const char* function) = 0;
  virtual void* native_handle() const = 0;
  virtual void* workspace(std::int64_t num_bytes) = 0;
  virtual void set_workspace(void* memory, std::int64_t num_bytes) = 0;
};

class Stream {
 public:
  Stream(Device device, StreamOptions options);
  ~Stream();  // waits for the queue; a kept error is logged, never thrown
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const noexcept { return device_; }
  int threads() const noexcept { return threads_; }
  bool allows_tf32() const noexcept { return allow_tf32_; }

  // Runs `task()` on the host, in stream order. A CUDA stream waits for the task without holding up other streams; the
  // task runs on a thread that belongs to this stream alone. On `dry` the task is dropped.
  template <typename Task>
  void enqueue(const Task& task) {
    static_assert(std::is_trivially_copyable_v<Task>, "a task must capture only views, pointers and numbers");
    static_assert(sizeof(Task) <= slot_bytes, "the task's captures are too large for a slot");
    if (backend_ == nullptr) return;
    backend_->enqueue_host([](void* closure) { (*static_cast<Task*>(closure))(); }, &task, sizeof(Task));
  }

  // Marks this point of the stream in `event`.
  void record(Event& event);
  // Later work of this stream starts only after the point last recorded in `event`.
  void wait(Event& event);
  // Blocks the host until all work is done; rethrows the first error of a task.
  void synchronize();

  // Copies bytes between host and device memory, in stream order. Host memory should be pinned, else the copy may hold
  // up the caller.
  void transfer(void* destination, const void* source, std::int64_t num_bytes);
  // *time_s = when the stream passes this point, in seconds on a clock of its own; there after the next synchronize().
  // `time_s` must stay valid until then. On `dry` 0.
  void mark_time(double* time_s);

  // CUDA: the cudaStream_t (see device/cuda.hpp); null elsewhere.
  void* native_handle() const { return backend_ ? backend_->native_handle() : nullptr; }
  // CUDA: scratch memory on the device for the kernels that are enqueued next; the next caller overwrites it, in stream
  // order. Throws Error where there is less.
  void* workspace(std::int64_t num_bytes);
  // CUDA: scratch memory of the caller's, which must outlive the stream's work; instead of the stream's own.
  void set_workspace(void* memory, std::int64_t num_bytes);

  // State of a library that belongs to this stream (a handle, its plans): made on first use as T(*this), ends with the
  // stream.
  template <typename T>
  T& attachment() {
    static constexpr char key = 0;  // its address names T
    for (auto& [known, state] : attachments_) {
      if (known == &key) return *static_cast<T*>(state.get());
    }
    auto made = std::make_shared<T>(*this);
    attachments_.emplace_back(&key, made);
    return *made;
  }

  // Every operation calls it once, before what it enqueues: its multiplications and additions, and each tensor's bytes
  // once per read or write. The calling function names it for profilers (NVTX) and set_profile().
  void account(double flops, double bytes, std::source_location place = std::source_location::current()) {
    costs_.flops += flops;
    costs_.bytes += bytes;
    if (names_operations_) begin_operation(place.function_name(), flops, bytes);
  }
  // Times operations until it is called with null; `profile` must outlive that. Read it after synchronize().
  void set_profile(OperationProfile* profile) noexcept;
  StreamCosts costs() const noexcept { return costs_; }

  static constexpr std::size_t slot_bytes = 1000;

 private:
  void begin_operation(const char* function, double flops, double bytes);

  Device device_;
  int threads_;
  bool allow_tf32_;
  bool names_operations_ = false;
  OperationProfile* profile_ = nullptr;
  StreamCosts costs_;
  std::unique_ptr<StreamBackend> backend_;  // null on `dry`
  std::vector<std::pair<const void*, std::shared_ptr<void>>> attachments_;
};

}  // namespace potato
