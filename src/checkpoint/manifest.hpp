// manifest.json: what a checkpoint consists of, and the hashes of all of it.
//
// The text is {"xxh3":"…16 hex digits…",REST where the hash is that of REST. Every byte of every file belongs to one
// piece (a contiguous dataset's values) or to one block (everything else: HDF5's own structures, gaps, whole
// compressed files).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"

namespace potato {

inline constexpr std::int64_t checkpoint_format_version = 3;
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* index_name = "index.h5";

// A logical tensor as it is stored.
struct StoredTensor {
  std::string name;  // with its prefix: "/model/norm.weight"
  DType dtype = DType::f32;
  Shape shape;  // one or two dims

  std::int64_t num_columns() const { return shape.num_dims() == 2 ? shape[1] : 1; }
};

// A dataset: a hyperslab of a tensor, row-major.
struct ManifestPiece {
  int tensor = 0;
  int file = 0;
  std::array<std::int64_t, 2> begin{0, 0};
  std::array<std::int64_t, 2> count{0, 1};  // one dim: {elements, 1}
  std::int64_t offset_bytes = -1;           // in the file; −1: compressed, HDF5 knows
  std::uint64_t hash = 0;                   // of the values, uncompressed

  std::int64_t num_elems() const noexcept { return count[0] * count[1]; }
};

// Bytes of a file that belong to no piece with an offset.
struct FileBlock {
  std::int64_t offset_bytes = 0;
  std::int64_t num_bytes = 0;
  std::uint64_t hash = 0;
};

struct ShardFile {
  std::string name;
  std::int64_t num_bytes = 0;
  std::uint64_t hash = 0;  // of offset, bytes and hash of all its pieces and blocks, in the order of the file
  std::vector<FileBlock> blocks;
};

struct Manifest {
  CheckpointInfo info;
  std::vector<StoredTensor> tensors;
  std::vector<ShardFile> files;
  std::vector<ManifestPiece> pieces;
  FileBlock index;  // of index.h5: bytes and hash

  std::int64_t piece_bytes(const ManifestPiece& piece) const;
  // "/model/norm.weight/0", the dataset in its file.
  std::string dataset_name(const ManifestPiece& piece) const;
  // "shard-00000-of-00002.h5, dataset /model/norm.weight/0"
  std::string place_of(const ManifestPiece& piece) const;
  std::int64_t total_bytes() const;
};

// The hash of a file from those of its parts, which this sorts by offset; nothing else may lie in the file.
std::uint64_t combined_hash(std::vector<FileBlock>& parts);

// What of [0, num_bytes) no part covers, cut to blocks of a size that ranks can share; hashes are left 0. `parts` is
// sorted by offset.
std::vector<FileBlock> uncovered_blocks(const std::vector<FileBlock>& parts, std::int64_t num_bytes);

// The parts of file number `file` that are pieces with offsets.
std::vector<FileBlock> piece_parts(const Manifest& manifest, int file);

std::string dataset_name(const StoredTensor& tensor, const std::array<std::int64_t, 2>& begin);

std::string manifest_text(const Manifest& manifest);

// Strict: throws DamageError (with `path`) where the hash is wrong or the pieces do not tile every tensor and file, and
// ConfigError where a newer program wrote it.
Manifest parse_manifest(const std::string& text, const std::string& path);

}  // namespace potato
