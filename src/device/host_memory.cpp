#include "potato/device/host_memory.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>

#include "potato/core/error.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

// The number in a file, or 0 where there is none ("max").
std::int64_t number_in(const fs::path& path) {
  std::ifstream in(path);
  std::string text;
  in >> text;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

// Least limit of `group` and its ancestors below `root`.
std::int64_t least_limit(const fs::path& root, const std::string& group, const char* file) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (fs::path at = fs::path(group).relative_path();; at = at.parent_path()) {
    const std::int64_t limit = number_in(root / at / file);
    if (limit > 0) least = std::min(least, limit);
    if (at.empty()) break;
  }
  // Version 1 says "no limit" with the largest multiple of a page.
  constexpr std::int64_t no_limit = std::int64_t{1} << 60;
  return least >= no_limit ? 0 : least;
}

std::int64_t cgroup_limit(const fs::path& proc, const fs::path& root) {
  std::ifstream in(proc / "self" / "cgroup");
  std::int64_t least = 0;
  for (std::string line; std::getline(in, line);) {
    // "0::/path" of version 2, "5:cpu,memory:/path" of version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = cat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string group = line.substr(second + 1);
    std::int64_t limit = 0;
    if (controllers == ",,") limit = least_limit(root, group, "memory.max");
    if (controllers.find(",memory,") != std::string::npos) {
      limit = least_limit(root / "memory", group, "memory.limit_in_bytes");
    }
    if (limit > 0) least = least == 0 ? limit : std::min(least, limit);
  }
  return least;
}

std::int64_t mem_total(const fs::path& proc) {
  std::ifstream in(proc / "meminfo");
  std::string word;
  while (in >> word) {
    std::int64_t kilobytes = 0;
    if (word == "MemTotal:" && in >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t HostMemoryLimit::bytes() const noexcept {
  if (cgroup_bytes == 0 || mem_total_bytes == 0) return std::max(cgroup_bytes, mem_total_bytes);
  return std::min(cgroup_bytes, mem_total_bytes);
}

HostMemoryLimit host_memory_limit(const std::string& proc, const std::string& cgroup_root) {
  return {cgroup_limit(proc, cgroup_root), mem_total(proc)};
}

}  // namespace potato
