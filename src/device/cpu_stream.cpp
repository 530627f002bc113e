#include <cstring>

#include "cpu_queue.hpp"
#include "potato/core/clock.hpp"
#include "stream_backends.hpp"

namespace potato {

class CpuStream final : public StreamBackend {
 public:
  explicit CpuStream(StreamOptions options) : queue_(std::move(options)) {}

  void enqueue_host(void (*invoke)(void*), const void* closure, std::size_t bytes) override {
    queue_.push(invoke, closure, bytes, false);
  }

  void record(Event& event) override {
    queue_.push_always([&event, number = ++event.recorded_] {
      event.completed_.store(number, std::memory_order_release);
      event.completed_.notify_all();
    });
  }

  void wait(Event& event) override {
    queue_.push_always([&event, number = event.recorded_] {
      for (std::uint64_t done = event.completed_.load(std::memory_order_acquire); done < number;
           done = event.completed_.load(std::memory_order_acquire)) {
        event.completed_.wait(done, std::memory_order_acquire);
      }
    });
  }

  void synchronize() override { queue_.synchronize(); }

  void transfer(void* destination, const void* source, std::int64_t num_bytes) override {
    if (destination == source) return;
    const auto task = [=] { std::memcpy(destination, source, static_cast<std::size_t>(num_bytes)); };
    queue_.push([](void* closure) { (*static_cast<decltype(task)*>(closure))(); }, &task, sizeof(task), false);
  }

  void mark_time(double* time_s) override {
    queue_.push_always([time_s] { *time_s = now_s(); });
  }

  void name_operation(const char*) override {}

  void* native_handle() const override { return nullptr; }

  void* workspace(std::int64_t num_bytes) override {
    throw Error(cat("a CPU stream has no workspace (", num_bytes, " bytes asked for)"));
  }

  void set_workspace(void*, std::int64_t) override {}

 private:
  CpuQueue queue_;
};

std::unique_ptr<StreamBackend> make_cpu_stream(StreamOptions options) {
  return std::make_unique<CpuStream>(std::move(options));
}

}  // namespace potato
