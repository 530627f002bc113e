#include "reading.hpp"

#include <algorithm>
#include <filesystem>

#include "h5.hpp"
#include "potato/core/xxh3.hpp"
#include "probe.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

std::string read_text_file(const std::string& path) {
  const FileDescriptor file = open_for_reading(path);
  std::string text(static_cast<std::size_t>(fs::file_size(path)), '\0');
  text.resize(read_up_to(file, path, text.data(), text.size()));
  return text;
}

// Why there is no manifest, and what there is instead.
std::string without_manifest(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return cat("checkpoint ", folder, " does not exist");
  if (!fs::is_directory(folder, error)) {
    return cat("checkpoint ", folder, " cannot be used: it ", probe_file(folder), "; give a step folder");
  }
  const std::string older = folder + "/checkpoint.h5";
  if (fs::exists(older, error)) return cat("checkpoint ", folder, " cannot be used: ", older, " ", probe_file(older));
  return cat("checkpoint ", folder, " is damaged: ", manifest_name, " is missing");
}

}  // namespace

Manifest read_manifest(const std::string& folder, const HostGroup& group) {
  const std::string path = (fs::path(folder) / manifest_name).string();
  std::string text;
  std::vector<std::string> problems;
  if (group.rank() == 0) {
    std::error_code error;
    try {
      if (!fs::is_regular_file(path, error)) throw IoError(without_manifest(folder));
      text = read_text_file(path);
    } catch (const std::exception& failure) {
      problems.emplace_back(failure.what());
    }
  }
  try {
    group.agree(problems);
  } catch (const ConfigError& failure) {
    throw DamageError(failure.problems());
  }
  return parse_manifest(group.broadcast(text, 0), path);  // the same text, so the same error on all ranks
}

std::vector<std::string> file_problems(const std::string& folder, const Manifest& manifest, const HostGroup& group) {
  std::string text;
  if (group.rank() == 0) {
    for (const ShardFile& file : manifest.files) {
      std::error_code error;
      const auto num_bytes = static_cast<std::int64_t>(fs::file_size(fs::path(folder) / file.name, error));
      if (error) {
        text += cat("checkpoint ", folder, " is damaged: ", file.name, ": ", error.message(), '\n');
      } else if (num_bytes != file.num_bytes) {
        text += cat("checkpoint ", folder, " is damaged: ", file.name, " has ", num_bytes, " bytes, ", file.num_bytes,
                    " were written\n");
      }
    }
  }
  text = group.broadcast(text, 0);
  std::vector<std::string> problems;
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    problems.push_back(text.substr(begin, text.find('\n', begin) - begin));
  }
  return problems;
}

std::string index_problem(const std::string& folder, const Manifest& manifest, const HostGroup& group) {
  std::string problem;
  if (group.rank() == 0) {
    const std::string path = (fs::path(folder) / index_name).string();
    try {
      const std::string text = read_text_file(path);
      if (static_cast<std::int64_t>(text.size()) != manifest.index.num_bytes || xxh3(text) != manifest.index.hash) {
        problem = cat(path, " is not as it was written");
      }
    } catch (const std::exception&) {
      problem = cat(path, " is missing or cannot be read");
    }
  }
  return group.broadcast(problem, 0);
}

void Problems::add(const std::string& problem) {
  constexpr std::size_t most = 10;
  if (texts_.size() < most) {
    texts_.push_back(problem);
  } else {
    ++num_more_;
  }
}

std::vector<std::string> Problems::texts() const {
  std::vector<std::string> texts = texts_;
  if (num_more_ > 0) texts.push_back(cat("and ", num_more_, " more like these"));
  return texts;
}

ShardReader::ShardReader(std::string folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest), buffer_(part_bytes) {}

std::string ShardReader::path(int file) const {
  return (fs::path(folder_) / manifest_.files[static_cast<std::size_t>(file)].name).string();
}

const FileDescriptor& ShardReader::opened(int file) {
  constexpr std::size_t most_open = 64;
  const auto found = files_.find(file);
  if (found != files_.end()) return found->second;
  if (files_.size() >= most_open) files_.clear();
  return files_.emplace(file, open_for_reading(path(file))).first->second;
}

void ShardReader::read(int file, std::int64_t offset_bytes, std::int64_t num_bytes, void* out) {
  read_at(opened(file), path(file), out, offset_bytes, num_bytes);
}

std::uint64_t ShardReader::hash(int file, std::int64_t offset_bytes, std::int64_t num_bytes,
                                const PartMemory& part_memory, const OnPart& on_part) {
  Xxh3 state;
  for (std::int64_t done = 0; done < num_bytes; done += part_bytes) {
    const std::int64_t bytes = std::min(part_bytes, num_bytes - done);
    char* memory = part_memory ? part_memory(done, bytes) : nullptr;
    if (memory == nullptr) memory = buffer_.data();
    read(file, offset_bytes + done, bytes, memory);
    state.add(memory, bytes);
    if (on_part) on_part(done, bytes, memory);
  }
  return state.value();
}

void ShardReader::check_blocks(int rank, int num_ranks, Problems& problems) {
  std::int64_t number = 0;
  for (std::size_t file = 0; file < manifest_.files.size(); ++file) {
    for (const FileBlock& block : manifest_.files[file].blocks) {
      if (number++ % num_ranks != rank) continue;
      const auto damaged = [&](const std::string& why) {
        problems.add(cat("checkpoint ", folder_, " is damaged: ", manifest_.files[file].name, ", bytes ",
                         block.offset_bytes, " to ", block.offset_bytes + block.num_bytes - 1,
                         manifest_.files[file].blocks.size() == 1 ? "" : " (between tensors)", ": ", why));
      };
      try {
        const std::uint64_t found = hash(static_cast<int>(file), block.offset_bytes, block.num_bytes);
        if (found != block.hash) damaged(wrong_hash(found, block.hash));
      } catch (const IoError& error) {
        damaged(error.what());
      }
    }
  }
}

std::string wrong_hash(std::uint64_t found, std::uint64_t written) {
  return cat("the hash is ", hash_text(found), ", ", hash_text(written), " was written");
}

void read_compressed(const std::string& path, const std::string& dataset, const StoredTensor& tensor, void* out) {
  silence_h5();
  const H5File file(PC_H5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)));
  const H5Dataset values(PC_H5(H5Dopen2(file.get(), dataset.c_str(), H5P_DEFAULT)));
  PC_H5(H5Dread(values.get(), memory_type(tensor.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, out));
}

}  // namespace potato
