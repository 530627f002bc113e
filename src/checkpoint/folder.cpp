// The folder of checkpoints, and what is kept of the environment.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "schema.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

// "step-00000200": the name of a committed checkpoint. Steps of more than eight digits have longer names.
bool is_step_name(const std::string& name) {
  return name.size() >= 13 && name.rfind("step-", 0) == 0 &&
         std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The newest committed file, or "".
std::string newest_in(const fs::path& folder) {
  std::error_code error;
  std::string name;
  std::ifstream in(folder / "latest");
  if (std::getline(in, name) && is_step_name(name) && fs::exists(folder / name / checkpoint_file_name, error)) {
    return (folder / name / checkpoint_file_name).string();
  }
  // Without a usable `latest` the committed folders speak for themselves.
  std::string newest;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string candidate = entry.path().filename().string();
    if (is_step_name(candidate) && fs::exists(entry.path() / checkpoint_file_name, error)) {
      if (candidate.size() != newest.size() ? candidate.size() > newest.size() : candidate > newest) newest = candidate;
    }
  }
  return newest.empty() ? "" : (folder / newest / checkpoint_file_name).string();
}

std::string named(const std::string& resume) {
  std::error_code error;
  const fs::path path(resume);
  if (fs::is_regular_file(path, error)) return resume;
  if (fs::is_regular_file(path / checkpoint_file_name, error)) return (path / checkpoint_file_name).string();
  for (const fs::path& folder : {path, path / "checkpoints"}) {
    std::string newest = newest_in(folder);
    if (!newest.empty()) return newest;
  }
  throw ConfigError(
      cat("checkpoint.resume = ", resume, ": no checkpoint there; give a step folder, a run folder, latest or none"));
}

bool is_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const char* word : {"KEY", "TOKEN", "SECRET", "PASSWORD"}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::string resolve_checkpoint(const std::string& resume, const std::string& folder, const HostGroup& group) {
  std::string path;
  group.run_agreed([&] {
    if (group.rank() != 0 || resume == "none" || resume.empty()) return;
    path = resume == "latest" ? newest_in(folder) : named(resume);
  });
  return group.broadcast(path, 0);
}

void clean_leftovers(const std::string& folder, const HostGroup& group) {
  group.run_agreed([&] {
    if (group.rank() != 0) return;
    std::error_code error;
    std::vector<fs::path> leftovers;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("step-", 0) == 0 && name.ends_with(".tmp")) leftovers.push_back(entry.path());
    }
    for (const fs::path& leftover : leftovers) fs::remove_all(leftover, error);
  });
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
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

}  // namespace potato
