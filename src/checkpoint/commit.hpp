// How a written step folder becomes a checkpoint, and when older ones go. One rank.
#pragma once

#include <cstdint>
#include <string>

namespace potato {

// A new file with this text, on the disk.
void write_synced(const std::string& path, const std::string& text);

// The written folder takes its final name, then `latest` moves. A folder of the same step, from before a resume,
// changes places with it in one move, so that a kill at any moment leaves one of the two.
void commit(const std::string& folder, const std::string& temporary, const std::string& final_path);

// Removes checkpoints of steps before `step` that neither keep_last (with the one of `step`) nor keep_every keeps. What
// cannot be removed stays.
void remove_old(const std::string& folder, std::int64_t step, std::int64_t keep_last, std::int64_t keep_every) noexcept;

}  // namespace potato
