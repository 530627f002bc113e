// Checkpoints: one HDF5 file that holds logical tensors, so that any grid can go on from any other's.
//
//   FOLDER/step-00000200/checkpoint.h5     /model/NAME, /optimizer/exp_avg/NAME, /optimizer/exp_avg_sq/NAME, /info/TEXT
//   FOLDER/latest                          the name of the newest committed step folder
//
// A checkpoint is written as step-N.tmp, synced and renamed; only then `latest` moves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "potato/comm/host_group.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// A checkpoint could not be saved; the same on all ranks. What was committed before is untouched.
class SaveError : public Error {
 public:
  explicit SaveError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

// What a checkpoint says beside its tensors.
struct CheckpointInfo {
  std::int64_t step = 0;         // done
  std::int64_t updates = 0;      // of them not skipped
  std::int64_t next_sample = 0;  // global sample number of the next step's first sample
  std::int64_t tokens = 0;       // seen
  std::string model_signature;   // JSON of what must be equal to load it
  std::string config_ini;
  std::string command_line;
  std::string environment;  // masked
  std::string grid;
  std::string fingerprint;  // of numerics
  std::string versions;
  std::string dtype;
  std::string loss_scaler;  // LossScaler::State as JSON
};

// A part of a logical tensor in host memory.
struct StoredPiece {
  Piece piece;              // name, shape, begin and count; the offset is not read
  TensorView values;        // [count[0] · count[1]]
  bool is_written = false;  // by this rank; of the ranks that hold an element one writes it
};

// What is stored under `prefix` + "/" + logical name: weights, or a moment of the optimizer.
struct TensorGroup {
  std::string prefix;
  DType dtype = DType::f32;  // of the values
  std::vector<StoredPiece> pieces;
};

// Collective over `group`. Each rank writes the pieces that it has to, into one file, in parallel. Throws SaveError on
// all ranks where the disk is too small or anything fails, and Error where the written pieces do not cover every
// tensor. Returns the committed folder.
std::string save_checkpoint(const std::string& folder, const HostGroup& group, std::span<const TensorGroup> groups,
                            const CheckpointInfo& info);

// The file that `resume` names: "" for none, or for latest where nothing was committed yet. `resume` may be a step
// folder, a folder of step folders, or a file. Collective; throws ConfigError on all ranks.
std::string resolve_checkpoint(const std::string& resume, const std::string& folder, const HostGroup& group);

// Collective; throws ConfigError on all ranks where the file is missing, foreign or truncated.
CheckpointInfo read_checkpoint_info(const std::string& path, const HostGroup& group);

// Collective. Fills every piece of every group; each rank reads all of its pieces. Throws one ConfigError on
// all ranks for missing datasets, for unexpected ones (anything but /info that no group asks for), and for shapes that
// differ.
void load_checkpoint(const std::string& path, const HostGroup& group, std::span<const TensorGroup> groups);

// Removes what killed saves left in `folder` (step-N.tmp). Collective.
void clean_leftovers(const std::string& folder, const HostGroup& group);

// All environment variables, one a line, sorted; values of names that contain KEY, TOKEN, SECRET or PASSWORD are ***.
std::string masked_environment();

}  // namespace potato
