#include "cpu_queue.hpp"

#include <omp.h>

#include <chrono>
#include <iostream>

#include "potato/core/philox.hpp"

namespace potato {

CpuQueue::CpuQueue(StreamOptions options) : options_(std::move(options)), slots_(options_.inline_mode ? 1 : num_slots) {
  if (!options_.inline_mode) thread_ = std::thread([this] { serve(); });
}

CpuQueue::~CpuQueue() {
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

void CpuQueue::push(void (*invoke)(void*), const void* closure, std::size_t bytes, bool always, bool last) {
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

void CpuQueue::synchronize() {
  if (!options_.inline_mode) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    for (std::uint64_t done = done_.load(std::memory_order_acquire); done != head;
         done = done_.load(std::memory_order_acquire)) {
      done_.wait(done, std::memory_order_acquire);
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CpuQueue::serve() {
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

void CpuQueue::run(Slot& slot) {
  if (failed_ && !slot.always) return;
  if (options_.random_delay_us > 0) delay();
  try {
    slot.invoke(slot.closure);
  } catch (...) {
    if (failed_) return;  // the first error counts
    failed_ = true;
    error_ = std::current_exception();
    if (options_.on_error) options_.on_error(error_);
  }
}

void CpuQueue::delay() {
  const std::uint32_t bits =
      philox_u32(philox_key(options_.delay_seed, options_.name), RandomDomain::test, num_delays_++, 0, 0);
  if (bits % 4 != 0) return;  // a few long delays reorder more than many short ones
  const auto limit = static_cast<std::uint64_t>(options_.random_delay_us);
  std::this_thread::sleep_for(std::chrono::microseconds((static_cast<std::uint64_t>(bits) * limit) >> 32));
}

}  // namespace potato
