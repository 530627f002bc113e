// A training run from start table to final sample.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/comm/gpu_topology.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/comm/topology.hpp"
#include "potato/config/config.hpp"
#include "potato/data/dataset.hpp"
#include "potato/train/checkpoints.hpp"
#include "potato/train/engine.hpp"
#include "potato/train/reporter.hpp"
#include "potato/train/requests.hpp"
#include "potato/train/stragglers.hpp"
#include "potato/train/watchdog.hpp"

namespace potato {

class NcclWatch;

// What a run needs beside its configuration.
struct RunContext {
  std::string command_line;
  std::string config_given;  // the INI file's text
  bool quiet = false;        // tests: rank 0 prints nothing
  // Called from any thread with an error that ends the job.
  std::function<void(std::exception_ptr)> on_fatal;
};

// Collective over `world` throughout: every rank makes the same calls.
class Trainer {
 public:
  // Checks everything, opens the data, plans memory, claims it, and loads the checkpoint that checkpoint.resume names.
  // Throws the same ConfigError on all ranks for whatever the user can mend.
  Trainer(const Config& config, const HostGroup& world, RunContext run);

  // Steps up to train.steps, with evaluations and checkpoints on the way, the last of both and a sample at the end.
  // Returns the program's exit code: 0, 1 where a checkpoint could not be saved, run.requeue_exit_code where SIGUSR1
  // ended it. What asks for an early end (RequestSource) is agreed within a step, saved, and obeyed.
  int run();

  // Pieces of run(), for tests.
  StepResult train_step();
  double evaluate(std::int64_t max_batches);  // mean loss in nats; NaN where it was cut short
  std::int64_t step() const noexcept { return progress_.step; }
  Engine& engine() noexcept { return *engine_; }
  const Config& config() const noexcept { return config_; }
  bool save();

 private:
  void check() const;
  void choose_device();
  void open_data();
  void make_engine();
  void take_step();  // with what is said of it
  bool must_stop() const noexcept { return (pending_ & (request_stop | request_requeue)) != 0; }
  void say_why_it_stops(int exit_code);
  void print_start() const;
  void print_end() const;
  void fill_batch(int buffer, const SampleSource& source, std::int64_t first_sample) const;
  std::int64_t count_targets(const SampleSource& source, std::int64_t first_sample) const;
  void generate();
  // What follows from a step whose loss or gradients are not finite: the end of the run, or a line and a count.
  void handle_nonfinite(const StepResult& result);
  // The first tensor of backward whose gradient is not finite, of all ranks: its name, "none" where all are.
  // Collective.
  std::string first_nonfinite() const;
  void start_watching();
  // Does to this rank what run.debug_fault wants in the coming step.
  void play_fault();
  CheckpointInfo checkpoint_info() const;

  Config config_;
  const HostGroup& world_;
  RunContext run_;
  GridShape shape_;
  Topology topology_;
  Device device_;
  std::optional<GpuTopology> gpus_;  // of runs on GPUs
  std::string binding_;              // what was done about this rank's cores
  std::string hosts_;                // a line a rank: host and device
  std::unique_ptr<Dataset> data_;
  OwnerBytes planned_{};
  std::string host_memory_;   // what was found of it
  OperationProfile profile_;  // of the last step, where log.operation_times asks for it
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<NcclWatch> watch_;  // where ranks talk through NCCL; ends before the engine
  std::unique_ptr<Watchdog> watchdog_;
  Fault fault_;
  std::int64_t skips_in_a_row_ = 0;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Stragglers> stragglers_;
  std::unique_ptr<Checkpoints> checkpoints_;  // ends before the engine
  RequestSource requests_;
  unsigned pending_ = 0;  // requests that all ranks agreed on
  Progress progress_;
  std::int64_t first_step_ = 0;  // of this process
  std::int64_t saved_step_ = 0;
  int buffer_ = 0;                   // that holds the next step's batch
  std::int64_t filled_sample_ = -1;  // first sample of the batch in buffer_; −1: none
  double data_s_ = 0;
  double last_step_s_ = 0;
  std::int64_t own_allocations_ = 0;  // after this process's first step
  double train_s_ = 0;
  double data_bytes_per_step_ = 0;  // of this rank's collectives along the data axis, evaluations included
  double data_calls_per_step_ = 0;
};

}  // namespace potato
