// What asks a run to save or to end from outside: signals, files in the run's folder, the clock.
#pragma once

#include <string>

#include "potato/config/config.hpp"
#include "potato/train/engine.hpp"

namespace potato {

// SIGTERM, and SIGINT once, ask for request_stop, SIGUSR1 for request_requeue; a second SIGINT ends the process. For
// the whole process; the flag that the handler sets is its only global state.
void install_signal_handlers();

// This rank's part of what all ranks agree on within each step.
class RequestSource {
 public:
  // `watches`: this rank looks for the files STOP and SAVE in run.dir and at the clock (checkpoint.every_minutes).
  RequestSource(const Config& config, bool watches);

  // Request bits; they stay until honoured() (signals: for ever). Looks at files at most once a second.
  unsigned poll();
  // A checkpoint was saved because of `requests`, or for another reason (0): files are removed, the clock starts anew.
  void honoured(unsigned requests);
  // Why this rank asks, "SIGTERM" or "the file run/STOP"; "" where it does not.
  std::string reason() const;

 private:
  std::string path(const char* name) const { return config_.run.dir + "/" + name; }

  Config config_;
  bool watches_;
  double last_look_s_;
  double last_save_s_;
  unsigned from_files_ = 0;
  std::string reason_;  // "the file run/STOP" once it was seen
};

}  // namespace potato
