#include "potato/checkpoint/folder.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "manifest.hpp"
#include "step_folders.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

// The committed step folders, the one that `latest` names in front, then from the newest.
std::vector<std::string> newest_first(const fs::path& folder) {
  std::string name;
  std::ifstream in(folder / "latest");
  std::getline(in, name);
  const std::int64_t latest = step_of(name);
  std::vector<std::int64_t> steps = steps_in(folder.string());
  std::sort(steps.begin(), steps.end(),
            [latest](std::int64_t a, std::int64_t b) { return (a == latest) != (b == latest) ? a == latest : a > b; });
  std::vector<std::string> paths;
  paths.reserve(steps.size());
  for (const std::int64_t step : steps) paths.push_back((folder / step_name(step)).string());
  return paths;
}

std::vector<std::string> named(const std::string& resume) {
  std::error_code error;
  fs::path path(resume);
  if (path.filename().empty() && path.has_parent_path()) path = path.parent_path();  // "run/" is "run"
  if (path.filename() == manifest_name) return {path.parent_path().empty() ? "." : path.parent_path().string()};
  if (fs::exists(path / manifest_name, error)) return {path.string()};
  for (const fs::path& folder : {path, path / "checkpoints"}) {
    std::vector<std::string> found = newest_first(folder);
    if (!found.empty()) return found;
  }
  if (fs::exists(path, error) && (step_of(path.filename().string()) >= 0 || fs::is_regular_file(path, error))) {
    return {path.string()};  // what is wrong with it is said when it is opened
  }
  throw ConfigError(cat(resume, ": no checkpoint there; give a step folder, or a folder of them"));
}

bool is_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const char* word : {"KEY", "TOKEN", "SECRET", "PASSWORD"}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

}  // namespace

std::string step_name(std::int64_t step) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(step));
  return name.data();
}

std::int64_t step_of(const std::string& name) {
  if (name.size() < 13 || !name.starts_with("step-")) return -1;
  std::int64_t step = -1;
  const auto result = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  return result.ec == std::errc() && result.ptr == name.data() + name.size() && step_name(step) == name ? step : -1;
}

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::int64_t step = step_of(entry.path().filename().string());
    if (step >= 0) steps.push_back(step);
  }
  return steps;
}

std::vector<std::string> find_checkpoints(const std::string& resume, const std::string& folder,
                                          const HostGroup& group) {
  std::vector<std::string> paths;
  group.run_agreed([&] {
    if (group.rank() != 0 || resume == "none" || resume.empty()) return;
    paths = resume == "latest" ? newest_first(folder) : named(resume);
  });
  return lines_of(group.broadcast(joined(paths), 0));
}

std::vector<std::string> clean_leftovers(const std::string& folder, const HostGroup& group) {
  std::vector<std::string> removed;
  group.run_agreed([&] {
    if (group.rank() != 0) return;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-") && name.ends_with(".tmp")) removed.push_back(entry.path().string());
    }
    for (const std::string& path : removed) fs::remove_all(path, error);
  });
  return lines_of(group.broadcast(joined(removed), 0));
}

std::string masked_environment() {
  std::vector<std::string> lines;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string line = *variable;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals);
    lines.push_back(is_secret(name) ? name + "=***" : line);
  }
  std::sort(lines.begin(), lines.end());
  return joined(lines);
}

}  // namespace potato
