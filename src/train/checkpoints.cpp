#include "potato/train/checkpoints.hpp"

#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bytes_text.hpp"
#include "model_signature.hpp"
#include "potato/checkpoint/folder.hpp"
#include "potato/checkpoint/load.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/clock.hpp"

namespace potato {

namespace {

SaveOptions save_options(const Config& config, const CheckpointFile& file, FlightRecorder* recorder) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  SaveOptions options;
  options.file = file.file;
  options.num_files = file.num_files;
  options.deflate_level = deflate_level(checkpoint.compression);
  options.chunk_bytes = checkpoint.chunk_bytes;
  options.alignment_bytes = checkpoint.alignment_bytes;
  options.mpi_io_hints = mpi_io_hints(checkpoint.hints);
  options.verify = checkpoint.verify;
  options.keep_last = checkpoint.keep_last;
  options.keep_every = checkpoint.keep_every;
  options.debug_delay_ms = config.run.debug_slow_save_ms;
  // A large save takes longer than comm.timeout_s, and is no hang.
  if (recorder != nullptr) options.on_progress = [recorder] { recorder->progress(); };
  return options;
}

// "section.key" -> value of an INI text written by to_ini.
std::map<std::string, std::string> ini_values(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream in(text);
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.size() > 2 && line.front() == '[') section = line.substr(1, line.find(']') - 1);
    const std::size_t equals = line.find('=');
    if (line.empty() || line.front() == '#' || line.front() == '[' || equals == std::string::npos) continue;
    const auto trimmed = [](const std::string& word) {
      const std::size_t begin = word.find_first_not_of(' ');
      const std::size_t end = word.find_last_not_of(' ');
      return begin == std::string::npos ? "" : word.substr(begin, end - begin + 1);
    };
    values[section + "." + trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
  }
  return values;
}

// Only where both runs scale their loss: else the configuration says how to begin.
void restore_scaler(LossScaler& scaler, const CheckpointInfo& info, const std::string& path) {
  if (!scaler.is_active() || info.dtype != to_text(Precision::fp16)) return;
  try {
    const auto json = nlohmann::json::parse(info.loss_scaler);
    scaler.restore(
        {json.at("scale"), json.at("steps_since_overflow"), json.at("hysteresis_left"), json.at("consecutive_skips")});
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(cat("checkpoint ", path, ": the loss scaler's state cannot be read: ", error.what()));
  }
}

}  // namespace

Checkpoints::Checkpoints(const Config& config, const HostGroup& world, const CheckpointFile& file,
                         std::function<void(const std::string&)> print,
                         std::function<void(std::exception_ptr)> on_fatal, FlightRecorder* recorder)
    : config_(config),
      world_(world),
      folder_(config.run.dir + "/checkpoints"),
      print_(std::move(print)),
      on_fatal_(std::move(on_fatal)),
      saver_(folder_, world, save_options(config, file, recorder)) {}

Checkpoints::~Checkpoints() {
  if (in_background_.valid()) in_background_.wait();
}

Progress Checkpoints::resume(Engine& engine, const CheckpointInfo& now) {
  for (const std::string& path : clean_leftovers(folder_, world_)) {
    print_(cat("checkpoint  ", path, " removed: a save that did not end had left it"));
  }
  std::vector<std::string> candidates;
  try {
    candidates = find_checkpoints(config_.checkpoint.resume, folder_, world_);
  } catch (const ConfigError& error) {
    throw ConfigError(cat("checkpoint.resume = ", error.what()));
  }
  if (candidates.empty()) {
    if (config_.checkpoint.resume != "none") {
      print_(cat("resume      no checkpoint in ", folder_, " yet: starting from step 0"));
    }
    return {};
  }
  for (const std::string& path : candidates) {
    try {
      return load(engine, path, now);
    } catch (const DamageError& error) {
      if (candidates.size() == 1) throw;
      for (const std::string& problem : error.problems()) print_(cat("resume      ", problem));
      print_(cat("resume      ", path, " is passed over, looking for an older one"));
    }
  }
  throw ConfigError(cat("checkpoint.resume = ", config_.checkpoint.resume, ": all ", candidates.size(),
                        " checkpoints are damaged; potatochat verify says how"));
}

Progress Checkpoints::load(Engine& engine, const std::string& path, const CheckpointInfo& now) const {
  const bool only_weights = config_.checkpoint.load == CheckpointLoad::weights;
  const double start_s = now_s();
  const Checkpoint checkpoint(path, world_);
  const CheckpointInfo& then = checkpoint.info();
  world_.agree(signature_differences(then.model_signature, now.model_signature, path));
  const std::vector<TensorGroup> groups = engine.fetch_state();
  const LoadReport report =
      only_weights ? checkpoint.load(std::span(groups).first(1), Checkpoint::Rest::leave_out) : checkpoint.load(groups);
  engine.restore_state();
  const double seconds = now_s() - start_s;
  if (only_weights) {
    print_(cat("resume      weights of ", path, " (its step ", then.step, "): a new run starts from them, at step 0"));
  } else {
    world_.run_agreed([&] { restore_scaler(engine.loss_scaler(), then, path); });
    print_(cat("resume      ", path, ": step ", then.step, ", sample ", then.next_sample));
  }
  print_(cat("            tensors: ", report.loaded.size(), " loaded, 0 missing, 0 unexpected, ",
             report.left_out.size(), " left out (", only_weights ? "the optimizer's" : "none", "); ",
             bytes_text(report.num_bytes), " verified in ", std::round(100 * seconds) / 100, " s"));
  if (!checkpoint.index_problem().empty()) {
    print_(cat("            ", checkpoint.index_problem(), ": only other programs need it"));
  }
  if (only_weights) return {};
  print_resumed(path, then, now);
  return {then.step, then.updates, then.next_sample, then.tokens};
}

void Checkpoints::print_resumed(const std::string&, const CheckpointInfo& then, const CheckpointInfo& now) const {
  const auto old_values = ini_values(then.config_ini);
  for (const auto& [key, value] : ini_values(now.config_ini)) {
    const auto old_value = old_values.find(key);
    if (old_value == old_values.end() || old_value->second == value || key == "checkpoint.resume") continue;
    print_(cat("            ", key, ": ", value, ", as this run's configuration says (the checkpoint was made with ",
               old_value->second, ")"));
  }
  if (then.fingerprint == now.fingerprint) return;
  print_("            the numerics fingerprint differs: going on is equal up to rounding, not bitwise");
  print_(cat("              then: ", then.fingerprint));
  print_(cat("              now:  ", now.fingerprint));
}

Checkpoints::Outcome Checkpoints::write(std::span<const TensorGroup> groups, const CheckpointInfo& info,
                                        double start_s) const {
  Outcome outcome;
  try {
    outcome.path = saver_.save(groups, info);
  } catch (const SaveError& error) {
    outcome.problem = error.what();
  }
  outcome.seconds = now_s() - start_s;
  return outcome;
}

bool Checkpoints::report(const Outcome& outcome) {
  if (outcome.path.empty()) {
    print_(cat("checkpoint  NOT saved, training goes on: ", outcome.problem));
    all_saved_ = false;
    return false;
  }
  print_(cat("checkpoint  ", outcome.path, " committed in ", std::round(100 * outcome.seconds) / 100, " s"));
  return true;
}

bool Checkpoints::save(Engine& engine, const CheckpointInfo& info) {
  const double start_s = now_s();
  if (!config_.checkpoint.async) return report(write(engine.fetch_state(), info, start_s));
  const LibraryScope library;  // of threads, not of steps
  if (in_background_.valid()) {
    print_("checkpoint  waiting for the one before");
    report(in_background_.get());
  }
  auto groups = engine.begin_snapshot();
  print_(cat("checkpoint  step ", info.step, " queued, training was held up for ",
             std::round(1e5 * (now_s() - start_s)) / 1e2, " ms"));
  in_background_ = std::async(std::launch::async, [this, &engine, groups = std::move(groups), info, start_s] {
    const LibraryScope scope;
    try {
      engine.wait_for_snapshot();
      return write(groups, info, start_s);
    } catch (...) {
      if (on_fatal_) on_fatal_(std::current_exception());
      throw;
    }
  });
  return true;
}

void Checkpoints::poll() {
  if (!in_background_.valid() || in_background_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  report(in_background_.get());
}

bool Checkpoints::finish() {
  if (in_background_.valid()) report(in_background_.get());
  return all_saved_;
}

}  // namespace potato
