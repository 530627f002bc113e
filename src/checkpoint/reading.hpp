// Reading and hashing parts of a checkpoint's files; shared by loading and verifying.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "manifest.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/core/posix_file.hpp"

namespace potato {

// Reads the manifest on rank 0 and gives it to all. Collective; throws DamageError or ConfigError on all ranks.
Manifest read_manifest(const std::string& folder, const HostGroup& group);

// Missing files and wrong sizes, as rank 0 sees them. Collective.
std::vector<std::string> file_problems(const std::string& folder, const Manifest& manifest, const HostGroup& group);

// What is wrong with index.h5, as rank 0 sees it; "" for nothing. Collective.
std::string index_problem(const std::string& folder, const Manifest& manifest, const HostGroup& group);

// What this rank found wrong; of very many only the first and their number.
class Problems {
 public:
  void add(const std::string& problem);
  std::vector<std::string> texts() const;

 private:
  std::vector<std::string> texts_;
  std::int64_t num_more_ = 0;
};

// The files of one checkpoint, opened as they are needed.
class ShardReader {
 public:
  ShardReader(std::string folder, const Manifest& manifest);

  // Hashes `num_bytes` from `offset_bytes` on, in parts that stay in the cache; each goes to `part_memory(done, bytes)`
  // first (null: memory of its own) and is then handed to `on_part(done, bytes, memory)`. Throws IoError.
  using PartMemory = std::function<char*(std::int64_t done, std::int64_t num_bytes)>;
  using OnPart = std::function<void(std::int64_t done, std::int64_t num_bytes, const char* memory)>;
  std::uint64_t hash(int file, std::int64_t offset_bytes, std::int64_t num_bytes, const PartMemory& part_memory = {},
                     const OnPart& on_part = {});
  void read(int file, std::int64_t offset_bytes, std::int64_t num_bytes, void* out);

  std::string path(int file) const;
  // Adds a problem where a block of the files' own structures is not as it was written. Blocks are dealt out to
  // `num_ranks`.
  void check_blocks(int rank, int num_ranks, Problems& problems);

  static constexpr std::int64_t part_bytes = std::int64_t{1} << 19;

 private:
  const FileDescriptor& opened(int file);

  std::string folder_;
  const Manifest& manifest_;
  std::map<int, FileDescriptor> files_;
  std::vector<char> buffer_;
};

std::string wrong_hash(std::uint64_t found, std::uint64_t written);

// All values of a compressed piece, into `out`, through HDF5; only for files whose blocks were right. Throws H5Error.
void read_compressed(const std::string& path, const std::string& dataset, const StoredTensor& tensor, void* out);

}  // namespace potato
