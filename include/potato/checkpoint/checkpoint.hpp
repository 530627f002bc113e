// What a checkpoint is: logical tensors in sharded HDF5 files, so that any grid can go on from any other's.
//
//   FOLDER/step-00000200/shard-00003-of-00008.h5   pieces of tensors as datasets, /model/NAME/BEGIN, /optimizer/…
//                        manifest.json             what lies where, with hashes of all of it; what loading goes by
//                        index.h5                  each tensor as one virtual dataset, for other programs
//   FOLDER/latest                                  the name of the newest committed step folder
//
// All names are relative, so a step folder can be moved or copied. A checkpoint is written as step-N.tmp, synced and
// renamed; only then `latest` moves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "potato/core/error.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// A checkpoint could not be saved; the same on all ranks. What was committed before is untouched.
class SaveError : public Error {
 public:
  explicit SaveError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

// A checkpoint is not what was written: a file is missing, cut, or changed. Names file, dataset and piece.
class DamageError : public ConfigError {
 public:
  explicit DamageError(std::vector<std::string> problems) : ConfigError(std::move(problems)) {}
  explicit DamageError(const std::string& problem) : ConfigError(problem) {}
};

// What a checkpoint says beside its tensors.
struct CheckpointInfo {
  std::int64_t step = 0;         // done
  std::int64_t updates = 0;      // of them not skipped
  std::int64_t next_sample = 0;  // global sample number of the next step's first sample
  std::int64_t tokens = 0;       // seen
  std::string model_signature;   // JSON of what must be equal to load it
  std::string config_given;      // the INI file as it was
  std::string config_ini;        // all keys, as resolved
  std::string command_line;
  std::string environment;  // masked
  std::string hosts;        // a line a rank: host and device
  std::string grid;
  std::string fingerprint;  // of numerics
  std::string versions;
  std::string dtype;
  std::string loss_scaler;  // LossScaler::State as JSON
};

// A part of a logical tensor in host memory.
struct StoredPiece {
  Piece piece;              // name, shape, begin and count; the offset is not read
  TensorView values;        // [count[0] · count[1]], fp32 or fp64
  bool is_written = false;  // by this rank; of the ranks that hold an element one writes it
};

// What is stored under `prefix` + "/" + logical name: weights, or a moment of the optimizer.
struct TensorGroup {
  std::string prefix;
  DType dtype = DType::f32;  // of the values
  std::vector<StoredPiece> pieces;
};

// "HDF5 1.10.8".
std::string hdf5_version();

}  // namespace potato
