// Which operations of a communicator have started and ended on their stream: for the watchdog.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "potato/device/cuda.hpp"

namespace potato {

// Owns an event of CUDA.
class OwnedEvent {
 public:
  explicit OwnedEvent(unsigned flags) { PC_CUDA(cudaEventCreateWithFlags(&event_, flags)); }
  ~OwnedEvent() { cudaEventDestroy(event_); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The last operations, in the order of one stream. Never waits: an operation that finds no room is left out. Allocates
// nothing after it was made. Thread-safe.
class OpLog {
 public:
  // `name`: a string literal.
  void begin(cudaStream_t stream, const char* name);
  void end(cudaStream_t stream);  // of the operation begun last, by the same thread
  // What has been running for more than `timeout_s`, as far as calls of this function have seen; "" if nothing has.
  std::string overdue(double timeout_s);

 private:
  struct Entry {
    OwnedEvent start{cudaEventDisableTiming};
    OwnedEvent stop{cudaEventDisableTiming};
    const char* name = "";
    std::uint64_t number = 0;
    bool open = false;     // begun, the stop not recorded yet
    bool pending = false;  // both recorded, the end not seen yet
  };

  static bool has_ended(Entry& entry);

  std::mutex mutex_;
  std::array<Entry, 128> entries_;
  std::uint64_t num_begun_ = 0;
  Entry* current_ = nullptr;  // null: left out
  std::uint64_t watched_ = 0;
  double watched_since_s_ = 0;
};

}  // namespace potato
