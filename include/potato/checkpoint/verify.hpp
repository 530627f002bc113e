// Whether a checkpoint is as it was written, without a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/comm/host_group.hpp"

namespace potato {

struct VerifyReport {
  std::string folder;
  CheckpointInfo info;
  int num_files = 0;
  std::int64_t num_tensors = 0;
  std::int64_t num_pieces = 0;
  std::int64_t num_bytes = 0;         // of all files
  std::vector<std::string> problems;  // empty where all is well
};

// Hashes all of it, split over the ranks. Collective; the same report on all ranks.
VerifyReport verify_checkpoint(const std::string& folder, const HostGroup& group);

}  // namespace potato
