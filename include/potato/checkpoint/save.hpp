// Writing checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/comm/host_group.hpp"

namespace potato {

struct SaveOptions {
  // Which of the shard files this rank writes into, of how many. Ranks of one file write it together, through parallel
  // HDF5; a rank alone with its file uses HDF5's serial driver.
  int file = 0;
  int num_files = 1;
  int deflate_level = 0;  // 1 to 9: datasets are chunked and compressed; 0: contiguous
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  std::int64_t alignment_bytes = 4096;  // of larger datasets in the file
  std::vector<std::pair<std::string, std::string>> mpi_io_hints;
  bool verify = false;  // read all of it back before the commit
  // After a commit older checkpoints are removed, but for this many of the newest (0: all stay) and those whose step is
  // a multiple of keep_every (0: none by that).
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  std::int64_t debug_delay_ms = 0;    // tests: a pause between the phases of a save
  std::function<void()> on_progress;  // called now and then while data are written, by the thread that saves
};

// Writes checkpoints into one folder. Owns communicators of its own, so that one may be used by a background thread;
// one thread at a time uses HDF5 in a process.
class CheckpointSaver {
 public:
  // Collective over `group`.
  CheckpointSaver(std::string folder, const HostGroup& group, SaveOptions options);

  // Collective over the group. Each rank writes the pieces that it has to. Throws SaveError on all ranks where a disk
  // is too small (needed and free bytes) or anything fails, and Error where the written pieces do not cover every
  // tensor. Returns the committed folder.
  std::string save(std::span<const TensorGroup> groups, const CheckpointInfo& info) const;

 private:
  std::string folder_;
  SaveOptions options_;
  HostGroup group_;
  HostGroup file_group_;  // the ranks of this rank's file
};

}  // namespace potato
