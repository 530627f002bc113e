#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "potato/comm/nccl_communicator.hpp"

namespace potato {

NcclWatch::NcclWatch(std::vector<Communicator*> communicators, double timeout_s,
                     std::function<void(const std::string&)> on_failure)
    : communicators_(std::move(communicators)),
      timeout_s_(timeout_s),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

NcclWatch::~NcclWatch() = default;  // ~jthread asks the thread to stop, and joins

void NcclWatch::watch(const std::stop_token& stop) {
  constexpr auto pause = std::chrono::milliseconds(500);
  std::mutex mutex;
  std::condition_variable_any stopped;
  while (!stop.stop_requested()) {
    std::string trouble;
    for (Communicator* communicator : communicators_) {
      if (!trouble.empty()) break;
      try {
        trouble = communicator->trouble(timeout_s_);
      } catch (const std::exception& error) {
        trouble = error.what();
      }
    }
    if (!trouble.empty()) {
      on_failure_(trouble);
      for (Communicator* communicator : communicators_) communicator->abort();
      return;
    }
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, pause, [] { return false; });
  }
}

}  // namespace potato
