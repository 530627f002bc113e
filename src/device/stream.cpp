#include "potato/device/stream.hpp"

#include <omp.h>

#include <chrono>
#include <cstddef>
#include <iostream>
#include <thread>
#include <vector>

#include "potato/core/philox.hpp"

namespace potato {

// One producer (the rank's main thread), one consumer (the stream's thread).
class CpuQueue {
 public:
  explicit CpuQueue(StreamOptions options)
      : options_(std::move(options)), slots_(options_.inline_mode ? 1 : num_slots) {
    if (!options_.inline_mode) thread_ = std::thread([this] { serve(); });
  }

  ~CpuQueue() {
    if (thread_.joinable()) {
      push([](void*) {}, nullptr, 0, true, true);
      thread_.join();
    }
    if (error_) {
      try {
        std::rethrow_exception(error_);
      } catch (const std::exception& error) {
        std::cerr << "stream " << options_.name << " ended with an unreported error: " << error.what() << '\n';
      } catch (...) {
        std::cerr << "stream " << options_.name << " ended with an unreported error\n";
      }
    }
  }

  CpuQueue(const CpuQueue&) = delete;
  CpuQueue& operator=(const CpuQueue&) = delete;

  void push(void (*invoke)(void*), const void* closure, std::size_t bytes, bool always, bool last = false) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (!options_.inline_mode) {
      for (std::uint64_t done = done_.load(std::memory_order_acquire); head - done >= slots_.size();
           done = done_.load(std::memory_order_acquire)) {
        done_.wait(done, std::memory_order_acquire);
      }
    }
    Slot& slot = slots_[head % slots_.size()];
    slot.invoke = invoke;
    slot.always = always;
    slot.last = last;
    if (bytes > 0) std::memcpy(slot.closure, closure, bytes);
    if (options_.inline_mode) {
      omp_set_num_threads(options_.threads);
      run(slot);
      return;
    }
    head_.store(head + 1, std::memory_order_release);
    head_.notify_one();
  }

  void synchronize() {
    if (!options_.inline_mode) {
      const std::uint64_t head = head_.load(std::memory_order_relaxed);
      for (std::uint64_t done = done_.load(std::memory_order_acquire); done != head;
           done = done_.load(std::memory_order_acquire)) {
        done_.wait(done, std::memory_order_acquire);
      }
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr std::size_t num_slots = 1024;

  struct Slot {
    void (*invoke)(void*) = nullptr;
    bool always = false;
    bool last = false;
    alignas(std::max_align_t) std::byte closure[Stream::slot_bytes];
  };

  void serve() {
    omp_set_num_threads(options_.threads);
    for (std::uint64_t next = 0;; ++next) {
      head_.wait(next, std::memory_order_acquire);
      while (head_.load(std::memory_order_acquire) == next) head_.wait(next, std::memory_order_acquire);
      Slot& slot = slots_[next % slots_.size()];
      const bool last = slot.last;
      run(slot);
      done_.store(next + 1, std::memory_order_release);
      done_.notify_one();
      if (last) return;
    }
  }

  void run(Slot& slot) {
    if (failed_ && !slot.always) return;
    if (options_.random_delay_us > 0) delay();
    try {
      slot.invoke(slot.closure);
    } catch (...) {
      failed_ = true;
      error_ = std::current_exception();
      if (options_.on_error) options_.on_error(error_);
    }
  }

  void delay() {
    const std::uint32_t bits =
        philox_u32(philox_key(options_.delay_seed, options_.name), RandomDomain::test, num_delays_++, 0, 0);
    if (bits % 4 != 0) return;  // a few long delays reorder more than many short ones
    const auto limit = static_cast<std::uint64_t>(options_.random_delay_us);
    std::this_thread::sleep_for(std::chrono::microseconds((static_cast<std::uint64_t>(bits) * limit) >> 32));
  }

  StreamOptions options_;
  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> head_{0};  // tasks pushed
  std::atomic<std::uint64_t> done_{0};  // tasks finished
  bool failed_ = false;
  std::exception_ptr error_;
  std::uint64_t num_delays_ = 0;
  std::thread thread_;
};

void Event::synchronize() const {
  for (std::uint64_t done = completed_.load(std::memory_order_acquire); done < recorded_;
       done = completed_.load(std::memory_order_acquire)) {
    completed_.wait(done, std::memory_order_acquire);
  }
}

Stream::Stream(Device device, StreamOptions options) : device_(device), threads_(options.threads) {
  PC_CHECK(device.kind != DeviceKind::cuda, "this build has no CUDA back end");
  if (device.kind == DeviceKind::cpu) queue_ = std::make_unique<CpuQueue>(std::move(options));
}

Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;

void Stream::push(void (*invoke)(void*), const void* closure, std::size_t bytes, bool always) {
  queue_->push(invoke, closure, bytes, always);
}

void Stream::record(Event& event) {
  if (device_.kind == DeviceKind::dry) return;
  const std::uint64_t number = ++event.recorded_;
  const auto task = [&event, number] {
    event.completed_.store(number, std::memory_order_release);
    event.completed_.notify_all();
  };
  push([](void* closure) { (*static_cast<decltype(task)*>(closure))(); }, &task, sizeof(task), true);
}

void Stream::wait(Event& event) {
  if (device_.kind == DeviceKind::dry) return;
  const auto task = [&event, number = event.recorded_] {
    for (std::uint64_t done = event.completed_.load(std::memory_order_acquire); done < number;
         done = event.completed_.load(std::memory_order_acquire)) {
      event.completed_.wait(done, std::memory_order_acquire);
    }
  };
  push([](void* closure) { (*static_cast<decltype(task)*>(closure))(); }, &task, sizeof(task), true);
}

void Stream::synchronize() {
  if (queue_) queue_->synchronize();
}

}  // namespace potato
