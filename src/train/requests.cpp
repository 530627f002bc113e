#include "potato/train/requests.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "potato/core/clock.hpp"
#include "potato/core/error.hpp"

namespace potato {

namespace {

constexpr const char* stop_file = "STOP";
constexpr const char* save_file = "SAVE";

static_assert(std::atomic<unsigned>::is_always_lock_free, "set in a signal handler");
std::atomic<unsigned> signal_requests{0};
std::atomic<int> last_signal{0};

void note_signal(int number) {
  signal_requests.fetch_or(number == SIGUSR1 ? request_requeue : request_stop, std::memory_order_relaxed);
  last_signal.store(number, std::memory_order_relaxed);
}

std::string signal_name(int number) {
  return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : number == SIGUSR1 ? "SIGUSR1" : "a signal";
}

}  // namespace

void install_signal_handlers() {
  for (const int number : {SIGTERM, SIGUSR1, SIGINT}) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART | (number == SIGINT ? static_cast<int>(SA_RESETHAND) : 0);
    sigaction(number, &action, nullptr);
  }
}

RequestSource::RequestSource(const Config& config, bool watches)
    : config_(config), watches_(watches), last_look_s_(now_s()), last_save_s_(now_s()) {}

unsigned RequestSource::poll() {
  constexpr double look_every_s = 1;
  unsigned requests = signal_requests.load(std::memory_order_relaxed);
  if (!watches_) return requests;
  const double time_s = now_s();
  if (time_s - last_look_s_ >= look_every_s) {
    last_look_s_ = time_s;
    if (access(path(stop_file).c_str(), F_OK) == 0) {
      from_files_ |= request_stop;
      reason_ = cat("the file ", path(stop_file));
    }
    if (access(path(save_file).c_str(), F_OK) == 0) from_files_ |= request_save;
  }
  const double every_s = 60 * config_.checkpoint.every_minutes;
  if (every_s > 0 && time_s - last_save_s_ >= every_s) requests |= request_save;
  return requests | from_files_;
}

void RequestSource::honoured(unsigned requests) {
  last_save_s_ = now_s();
  if (!watches_) return;
  if ((from_files_ & requests & request_stop) != 0) unlink(path(stop_file).c_str());
  if ((from_files_ & requests & request_save) != 0) unlink(path(save_file).c_str());
  from_files_ &= ~requests;
}

std::string RequestSource::reason() const {
  if (signal_requests.load(std::memory_order_relaxed) != 0) return signal_name(last_signal.load());
  return reason_;
}

}  // namespace potato
