// A save, in phases that all ranks finish or none: plan, space, create, write, sync, describe, commit.
#include "potato/checkpoint/save.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

#include "commit.hpp"
#include "index.hpp"
#include "manifest.hpp"
#include "potato/checkpoint/folder.hpp"
#include "potato/checkpoint/verify.hpp"
#include "potato/comm/mpi_check.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/posix_file.hpp"
#include "potato/core/xxh3.hpp"
#include "shard.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

// Ranks of one file.
HostGroup file_group_of(const HostGroup& group, int file) {
  const LibraryScope library;
  MPI_Comm comm = MPI_COMM_NULL;
  PC_MPI(MPI_Comm_split(group.comm(), file, group.rank(), &comm));
  HostGroup result(comm);
  MPI_Comm_free(&comm);
  return result;
}

std::string shard_name(int file, int num_files) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "shard-%05d-of-%05d.h5", file, num_files);
  return name.data();
}

// What this rank writes, and where that lies in memory.
struct OwnPieces {
  std::vector<PlannedPiece> pieces;
  std::vector<TensorView> values;
};

OwnPieces own_pieces(std::span<const TensorGroup> groups) {
  OwnPieces own;
  for (const TensorGroup& group : groups) {
    for (const StoredPiece& stored : group.pieces) {
      if (!stored.is_written || stored.piece.num_elems() == 0) continue;
      own.pieces.push_back({{group.prefix + "/" + stored.piece.name, group.dtype, stored.piece.shape},
                            stored.piece.begin,
                            stored.piece.count});
      own.values.push_back(stored.values);
    }
  }
  return own;
}

// Everything that `group` writes, by rank, in each rank's order; on rank 0 of it.
std::vector<std::vector<PlannedPiece>> gather_plans(const HostGroup& group, const std::vector<PlannedPiece>& own) {
  std::vector<std::vector<PlannedPiece>> plans;
  for (const std::string& text : group.gather(plan_text(own), 0)) plans.push_back(parse_plan(text));
  return plans;
}

// All ranks' tensors, and what is wrong with how their pieces cover them. `wanted` are all that any rank knows of.
std::string coverage_problem(const std::vector<std::vector<PlannedPiece>>& plans,
                             const std::map<std::string, StoredTensor>& wanted) {
  std::map<std::string, std::int64_t> written;
  for (const auto& plan : plans) {
    for (const PlannedPiece& piece : plan) written[piece.tensor.name] += piece.num_elems();
  }
  for (const auto& [name, tensor] : wanted) {
    if (written[name] != tensor.shape.num_elems()) {
      return cat(name, ": owners write ", written[name], " of ", tensor.shape.num_elems(), " elements");
    }
  }
  return "";
}

std::map<std::string, StoredTensor> wanted_tensors(const HostGroup& group, std::span<const TensorGroup> groups) {
  std::map<std::string, StoredTensor> own;
  for (const TensorGroup& tensors : groups) {
    for (const StoredPiece& stored : tensors.pieces) {
      const std::string name = tensors.prefix + "/" + stored.piece.name;
      own.try_emplace(name, StoredTensor{name, tensors.dtype, stored.piece.shape});
    }
  }
  std::vector<PlannedPiece> lines;
  lines.reserve(own.size());
  for (const auto& [name, tensor] : own) lines.push_back({tensor, {0, 0}, {0, 0}});
  std::map<std::string, StoredTensor> all;
  for (const auto& plan : gather_plans(group, lines)) {
    for (const PlannedPiece& line : plan) all.try_emplace(line.tensor.name, line.tensor);
  }
  return all;
}

std::int64_t bytes_of(const std::vector<PlannedPiece>& pieces) {
  std::int64_t num_bytes = 0;
  for (const PlannedPiece& piece : pieces) num_bytes += piece.num_elems() * dtype_bytes(piece.tensor.dtype);
  return num_bytes;
}

// case-30: asked of the file system itself.
void check_free_space(const fs::path& folder, std::int64_t needed_bytes) {
  struct statvfs facts {};
  if (statvfs(folder.c_str(), &facts) != 0) {
    throw IoError(cat("cannot ask for the free space of ", folder.string(), ": ", system_words(errno)));
  }
  const auto free_bytes = static_cast<std::int64_t>(facts.f_bavail) * static_cast<std::int64_t>(facts.f_frsize);
  if (free_bytes < needed_bytes) {
    throw IoError(
        cat("the disk of ", folder.string(), " is too full: ", needed_bytes, " bytes needed, ", free_bytes, " free"));
  }
}

// Takes the space of the file's first bytes, so that no later write fails for a full disk or a quota: HDF5 1.10 does
// not survive a close that fails. Where the file system cannot do that, check_free_space has to be enough.
void reserve_space(const fs::path& path, std::int64_t num_bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open()) throw IoError(cat("cannot open ", path.string(), ": ", system_words(errno)));
  if (num_bytes == 0 || fallocate(file.get(), 0, 0, num_bytes) == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS) return;
  throw IoError(cat("cannot reserve ", num_bytes, " bytes for ", path.string(), ": ", system_words(errno)));
}

// Runs `work` and brings its failure to all ranks as a SaveError. Collective.
template <typename Work>
void save_agreed(const HostGroup& group, const Work& work) {
  std::vector<std::string> problems;
  try {
    work();
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
  }
  try {
    group.agree(problems);
  } catch (const ConfigError& error) {
    throw SaveError(error.what());
  }
}

// What a rank wrote, as a message.
std::string as_bytes(const std::vector<WrittenPiece>& written) {
  return {reinterpret_cast<const char*>(written.data()), written.size() * sizeof(WrittenPiece)};
}

std::vector<WrittenPiece> from_bytes(const std::string& bytes) {
  std::vector<WrittenPiece> written(bytes.size() / sizeof(WrittenPiece));
  if (!written.empty()) std::memcpy(written.data(), bytes.data(), written.size() * sizeof(WrittenPiece));
  return written;
}

// A closed shard file: its size and the hashes of what no piece covers. `parts` are its pieces with offsets.
ShardFile describe_file(const fs::path& path, std::vector<FileBlock> parts) {
  ShardFile file;
  file.name = path.filename().string();
  file.num_bytes = static_cast<std::int64_t>(fs::file_size(path));
  combined_hash(parts);  // sorts
  file.blocks = uncovered_blocks(parts, file.num_bytes);
  const FileDescriptor in = open_for_reading(path.string());
  std::vector<char> bytes;
  for (FileBlock& block : file.blocks) {
    bytes.resize(static_cast<std::size_t>(block.num_bytes));
    read_at(in, path.string(), bytes.data(), block.offset_bytes, block.num_bytes);
    block.hash = xxh3(bytes.data(), block.num_bytes);
  }
  parts.insert(parts.end(), file.blocks.begin(), file.blocks.end());
  file.hash = combined_hash(parts);
  return file;
}

// A ShardFile as text and back, for a message.
std::string file_text(const ShardFile& file) {
  std::ostringstream out;
  out << file.name << ' ' << file.num_bytes << ' ' << file.hash;
  for (const FileBlock& block : file.blocks) {
    out << ' ' << block.offset_bytes << ' ' << block.num_bytes << ' ' << block.hash;
  }
  return out.str();
}

ShardFile parse_file(const std::string& text) {
  ShardFile file;
  std::istringstream in(text);
  in >> file.name >> file.num_bytes >> file.hash;
  for (FileBlock block; in >> block.offset_bytes >> block.num_bytes >> block.hash;) file.blocks.push_back(block);
  return file;
}

}  // namespace

CheckpointSaver::CheckpointSaver(std::string folder, const HostGroup& group, SaveOptions options)
    : folder_(std::move(folder)),
      options_(std::move(options)),
      group_(group.comm()),
      file_group_(file_group_of(group_, options_.file)) {}

std::string CheckpointSaver::save(std::span<const TensorGroup> groups, const CheckpointInfo& info) const {
  const LibraryScope library;
  const fs::path final_path = fs::path(folder_) / step_name(info.step);
  const fs::path temporary = final_path.string() + ".tmp";
  const bool is_root = group_.rank() == 0;
  const bool is_file_root = file_group_.rank() == 0;
  const auto pause = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(options_.debug_delay_ms)); };

  // Plan. Rank 0 learns what all ranks write, each file's first rank what its file holds.
  const OwnPieces own = own_pieces(groups);
  const auto wanted = wanted_tensors(group_, groups);
  const auto plans = gather_plans(group_, own.pieces);
  const std::string problem = group_.broadcast(is_root ? coverage_problem(plans, wanted) : "", 0);
  PC_CHECK(problem.empty(), problem);
  ShardWriter shard(file_group_, options_, gather_plans(file_group_, own.pieces));
  const fs::path shard_path = temporary / shard_name(options_.file, options_.num_files);

  try {
    save_agreed(group_, [&] {
      if (!is_root) return;
      std::int64_t needed_bytes = std::int64_t{1} << 20;
      for (const auto& plan : plans) needed_bytes += bytes_of(plan);
      fs::create_directories(folder_);
      fs::remove_all(temporary);  // what a killed save of this step left
      check_free_space(folder_, needed_bytes);
      fs::create_directory(temporary);
    });
    pause();
    // All files take their space first, under other names, since HDF5 makes its file anew.
    save_agreed(group_, [&] {
      if (is_file_root) reserve_space(shard_path.string() + ".reserved", shard.num_bytes());
    });
    save_agreed(group_, [&] {
      if (is_file_root) fs::remove(shard_path.string() + ".reserved");
      if (is_file_root && shard.is_created_alone()) {
        shard.create_alone(shard_path.string());
        if (!shard.is_empty()) reserve_space(shard_path, static_cast<std::int64_t>(fs::file_size(shard_path)));
      }
    });
    save_agreed(group_, [&] { shard.open(shard_path.string()); });
    pause();
    std::vector<WrittenPiece> written;
    save_agreed(group_, [&] { written = shard.write(own.pieces, own.values); });
    pause();
    save_agreed(group_, [&] { shard.close(); });
    // Each host brings what it wrote to the disk.
    save_agreed(group_, [&] {
      if (!own.pieces.empty() || (is_file_root && !shard.is_empty())) sync_path(shard_path.string());
    });
    pause();

    // Describe: each file by its first rank, all of it by rank 0.
    const auto in_file = file_group_.gather(as_bytes(written), 0);
    std::string described;
    save_agreed(group_, [&] {
      if (!is_file_root || shard.is_empty()) return;
      std::vector<FileBlock> parts;
      for (std::size_t rank = 0; rank < in_file.size(); ++rank) {
        const auto pieces = from_bytes(in_file[rank]);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          const PlannedPiece& piece = shard.plans()[rank][i];
          if (pieces[i].offset_bytes < 0) continue;
          parts.push_back(
              {pieces[i].offset_bytes, piece.num_elems() * dtype_bytes(piece.tensor.dtype), pieces[i].hash});
        }
      }
      described = file_text(describe_file(shard_path, std::move(parts)));
    });
    const auto files = group_.gather(described, 0);
    const auto of_file = group_.gather(cat(options_.file), 0);
    const auto all_written = group_.gather(as_bytes(written), 0);
    save_agreed(group_, [&] {
      if (!is_root) return;
      Manifest manifest;
      manifest.info = info;
      std::map<std::string, int> file_index;
      std::map<std::string, int> tensor_index;
      for (const auto& [name, tensor] : wanted) {
        tensor_index[name] = static_cast<int>(manifest.tensors.size());
        manifest.tensors.push_back(tensor);
      }
      for (const std::string& text : files) {
        if (text.empty()) continue;
        manifest.files.push_back(parse_file(text));
        file_index[manifest.files.back().name] = static_cast<int>(manifest.files.size()) - 1;
      }
      for (std::size_t rank = 0; rank < plans.size(); ++rank) {
        if (plans[rank].empty()) continue;
        const int file = file_index.at(shard_name(std::stoi(of_file[rank]), options_.num_files));
        const auto pieces = from_bytes(all_written[rank]);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          const PlannedPiece& piece = plans[rank][i];
          manifest.pieces.push_back({tensor_index.at(piece.tensor.name), file, piece.begin, piece.count,
                                     pieces[i].offset_bytes, pieces[i].hash});
        }
      }
      manifest.index = write_index(temporary.string(), manifest);
      const std::string text = manifest_text(manifest);
      parse_manifest(text, (temporary / manifest_name).string());  // what loading will ask of it
      write_synced((temporary / manifest_name).string(), text);
    });
    pause();
    if (options_.verify) {
      VerifyReport report = verify_checkpoint(temporary.string(), group_);
      if (!report.problems.empty()) throw SaveError(cat("read back after writing: ", report.problems.front()));
    }
    save_agreed(group_, [&] {
      if (is_root) commit(folder_, temporary.string(), final_path.string());
    });
    pause();
    group_.run_agreed([&] {
      if (is_root) remove_old(folder_, info.step, options_.keep_last, options_.keep_every);
    });
  } catch (const SaveError&) {
    shard.abandon();
    group_.barrier();
    std::error_code ignored;
    if (is_root) fs::remove_all(temporary, ignored);
    throw;
  }
  return final_path.string();
}

}  // namespace potato
