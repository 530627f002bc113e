// A run's checkpoints: which one it goes on from, and saving, at once or in the background.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>

#include "potato/checkpoint/save.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/config/config.hpp"
#include "potato/train/engine.hpp"

namespace potato {

// How far a run is.
struct Progress {
  std::int64_t step = 0;         // done
  std::int64_t updates = 0;      // of them not skipped
  std::int64_t next_sample = 0;  // global sample number of the next step's first sample
  std::int64_t tokens = 0;       // seen
};

class Checkpoints {
 public:
  // `print` gets lines for people, on rank 0 only; `recorder` (may be null) learns that a save goes on. Collective over
  // `world`, which must outlive this.
  Checkpoints(const Config& config, const HostGroup& world, const CheckpointFile& file,
              std::function<void(const std::string&)> print, std::function<void(std::exception_ptr)> on_fatal,
              FlightRecorder* recorder);
  ~Checkpoints();  // waits for a save in the background
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Removes what killed saves left, then loads what checkpoint.resume names into the engine; nothing (step 0) where it
  // names none. `now` describes this run. Of a folder the newest checkpoint that is not damaged is taken, and what was
  // wrong with the others is said. Collective; throws ConfigError on all ranks.
  Progress resume(Engine& engine, const CheckpointInfo& now);

  // Saves the engine's state, which must be at rest between steps. With checkpoint.async it returns once the copy is
  // enqueued, and waits for an earlier save first. Returns false where nothing was saved (said in a line). Collective.
  bool save(Engine& engine, const CheckpointInfo& info);
  // Says what became of a save in the background, once it is done.
  void poll();
  // Waits for a save in the background. False where any save of this run failed. Collective.
  bool finish();

 private:
  struct Outcome {
    std::string path;  // "" where it failed
    std::string problem;
    double seconds = 0;
  };
  Outcome write(std::span<const TensorGroup> groups, const CheckpointInfo& info, double start_s) const;
  bool report(const Outcome& outcome);
  Progress load(Engine& engine, const std::string& path, const CheckpointInfo& now) const;
  void print_resumed(const std::string& path, const CheckpointInfo& then, const CheckpointInfo& now) const;

  const Config config_;
  const HostGroup& world_;
  std::string folder_;
  std::function<void(const std::string&)> print_;
  std::function<void(std::exception_ptr)> on_fatal_;
  CheckpointSaver saver_;
  std::future<Outcome> in_background_;
  bool all_saved_ = true;
};

}  // namespace potato
