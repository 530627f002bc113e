// Reading checkpoints: any grid's, whatever grid reads them.
//
// The manifest says what lies where. Before anything is used every byte of every file has been hashed, each by one
// rank: a rank that needs a whole piece hashes it as it reads it, the rest is dealt out. Contiguous datasets are read
// at their places in the file, without HDF5; compressed ones through HDF5, once their file's hash was right.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/comm/host_group.hpp"

namespace potato {

struct Manifest;

// What a load did, by full names.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> left_out;  // in the checkpoint, under no prefix that was asked for
  std::int64_t num_bytes = 0;         // of all shard files
};

class Checkpoint {
 public:
  // Reads the manifest in `folder` and checks it and the presence and size of all files. Collective; throws on all
  // ranks: DamageError where something is not as it was written, ConfigError where there is no checkpoint or one that
  // this program does not read.
  Checkpoint(std::string folder, const HostGroup& group);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const CheckpointInfo& info() const noexcept;
  // What is wrong with what loading does not need: the index for other programs. "" where it is there and whole.
  const std::string& index_problem() const noexcept { return index_problem_; }
  const std::string& folder() const noexcept { return folder_; }

  // What to do with tensors under prefixes that no group has.
  enum class Rest { refuse, leave_out };

  // Fills every piece of every group; each rank reads all of its pieces. Collective. Throws one ConfigError on all
  // ranks for tensors that are missing, that belong to no tensor of the model, and for shapes that differ; then nothing
  // was changed. Throws DamageError where a file is not as it was written; then the groups' values are undefined.
  LoadReport load(std::span<const TensorGroup> groups, Rest rest = Rest::refuse) const;

 private:
  std::string folder_;
  const HostGroup& group_;
  std::unique_ptr<const Manifest> manifest_;
  std::string index_problem_;
};

}  // namespace potato
