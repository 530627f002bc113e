// One shard file, written by the ranks of its group.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "h5.hpp"
#include "manifest.hpp"
#include "potato/checkpoint/save.hpp"
#include "potato/core/posix_file.hpp"

namespace potato {

// A piece that a rank will write.
struct PlannedPiece {
  StoredTensor tensor;
  std::array<std::int64_t, 2> begin{0, 0};
  std::array<std::int64_t, 2> count{0, 1};

  std::int64_t num_elems() const noexcept { return count[0] * count[1]; }
};

// Where it lies in its file, and the hash of its values.
struct WrittenPiece {
  std::int64_t offset_bytes = -1;  // −1: compressed
  std::uint64_t hash = 0;
};

// As a message between ranks.
std::string plan_text(const std::vector<PlannedPiece>& pieces);
std::vector<PlannedPiece> parse_plan(const std::string& text);

// Contiguous datasets: the group's first rank creates the file alone, with all datasets allocated, and then every rank
// writes its own independently. Compressed datasets can only be created and written by all ranks together.
class ShardWriter {
 public:
  // `plans`: the pieces of each rank of the file, on its first rank. Collective over `file_group`.
  ShardWriter(const HostGroup& file_group, const SaveOptions& options, std::vector<std::vector<PlannedPiece>> plans);

  bool is_empty() const noexcept { return num_bytes_ == 0; }      // then there is no file
  std::int64_t num_bytes() const noexcept { return num_bytes_; }  // of values, uncompressed
  bool is_created_alone() const noexcept { return options_.deflate_level == 0; }
  const std::vector<std::vector<PlannedPiece>>& plans() const noexcept { return plans_; }  // on the first rank

  void create_alone(const std::string& path);  // first rank only
  void open(const std::string& path);          // collective
  // Writes this rank's pieces. Collective if compressed.
  std::vector<WrittenPiece> write(const std::vector<PlannedPiece>& pieces, const std::vector<TensorView>& values);
  void close();             // flushes; collective
  void abandon() noexcept;  // after a failure; collective

 private:
  void create_datasets(hid_t file) const;
  WrittenPiece write_alone(const PlannedPiece& piece, const TensorView& values);
  std::vector<WrittenPiece> write_together(const std::vector<TensorView>& values);

  const HostGroup& file_group_;
  SaveOptions options_;
  std::vector<std::vector<PlannedPiece>> plans_;
  std::int64_t num_bytes_ = 0;
  H5File file_;
  FileDescriptor writeback_;  // of the same file
};

}  // namespace potato
