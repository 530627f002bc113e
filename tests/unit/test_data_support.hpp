// A temporary folder with files, and the problems of a ConfigError as text.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "potato/core/error.hpp"

namespace potato::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "potato-data-XXXXXX").string();
    PC_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  template <typename T>
  std::string write_ids(const std::string& name, const std::vector<T>& ids, const std::string& before = {}) const {
    return write(name, before + std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)));
  }

 private:
  std::filesystem::path path_;
};

inline std::string llm_c_header(std::int32_t num_tokens, std::int32_t version = 1, std::int32_t magic = 20240520) {
  std::int32_t header[256] = {magic, version, num_tokens};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header));
}

// The problems of the ConfigError that `body` throws; none where it throws nothing.
template <typename Body>
std::vector<std::string> config_problems(Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

template <typename Body>
std::string config_problem(Body&& body) {
  const std::vector<std::string> problems = config_problems(body);
  return problems.size() == 1 ? problems[0] : cat("<", problems.size(), " problems>");
}

// Reproducible bytes that look like nothing in particular.
inline std::string some_text(std::int64_t num_bytes, std::uint32_t state = 1) {
  std::string text(static_cast<std::size_t>(num_bytes), '\0');
  for (char& c : text) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return text;
}

}  // namespace potato::test
