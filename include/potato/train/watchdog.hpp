// Notices that nothing moves any more, says who is to blame, and ends the job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "potato/comm/host_group.hpp"
#include "potato/config/config.hpp"
#include "potato/core/flight_recorder.hpp"

namespace potato {

struct WatchdogOptions {
  std::string folder;  // of the status files, the same for all ranks
  GridShape shape;
  int world_rank = 0;
  double timeout_s = 600;
  double abort_timeout_s = 30;
};

// The status folder of a run, for all ranks: old files go, and every rank makes sure that it sees those of the others.
// Throws ConfigError on all ranks where hosts do not share the folder. Collective.
std::unique_ptr<FlightRecorder> make_flight_recorder(const std::string& folder, const HostGroup& world,
                                                     const GridShape& shape);

// A thread that looks at this rank's progress, and at all ranks' once its own has stood still for half of timeout_s;
// without MPI. When none of them has moved for timeout_s, one rank prints the report, every rank writes the stacks of
// its threads to FOLDER/rank-N.stack, and `on_hang(first line)` must end the job; if that does not come about within
// abort_timeout_s, the process leaves.
class Watchdog {
 public:
  Watchdog(WatchdogOptions options, const FlightRecorder& recorder, std::function<void(const std::string&)> on_hang);
  ~Watchdog();  // stops the thread
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(const std::stop_token& stop);
  void report();

  WatchdogOptions options_;
  const FlightRecorder& recorder_;
  std::function<void(const std::string&)> on_hang_;
  std::jthread thread_;
};

}  // namespace potato
