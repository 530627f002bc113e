#include "potato/data/sources.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "potato/core/error.hpp"
#include "potato/core/posix_file.hpp"

namespace potato {

namespace {

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> entries;
  std::string_view rest = list;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    std::string_view entry = rest.substr(0, comma);
    if (more) rest.remove_prefix(comma + 1);
    const std::size_t first = entry.find_first_not_of(" \t\r\n");
    entry = first == std::string_view::npos ? std::string_view{}
                                            : entry.substr(first, entry.find_last_not_of(" \t\r\n") - first + 1);
    entries.emplace_back(entry);
  }
  return entries;
}

// The matches of a pattern, sorted by bytes (not by the locale). Empty where nothing matches; a problem is appended
// where the search itself fails.
std::vector<std::string> expand_glob(const std::string& pattern, std::vector<std::string>& problems) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> matches;
  if (status == 0) matches.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 && status != GLOB_NOMATCH)
    problems.push_back(cat("data.path: the search for '", pattern, "' failed: ", system_words(errno), "."));
  std::sort(matches.begin(), matches.end());
  return matches;
}

// The problem with reading `path` as data, or nothing.
std::string problem_of_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return cat("data.path: '", path, "' cannot be read: ", system_words(errno), ".");
  if (S_ISDIR(status.st_mode))
    return cat("data.path: '", path, "' is a directory; name files, or a glob such as '", path, "/*.txt'.");
  if (!S_ISREG(status.st_mode)) return cat("data.path: '", path, "' is not a regular file.");
  if (status.st_size == 0) return cat("data.path: '", path, "' is empty (0 bytes); a file needs text or tokens.");
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return cat("data.path: '", path, "' cannot be opened: ", system_words(errno), ".");
  return {};
}

}  // namespace

std::vector<std::string> expand_paths(const std::string& data_path) {
  std::vector<std::string> files, problems;
  if (data_path.find_first_not_of(" \t\r\n") == std::string::npos)
    throw ConfigError("data.path is empty; it takes files and globs, separated by commas.");
  for (const std::string& entry : split_list(data_path)) {
    if (entry.empty()) {
      problems.push_back(cat("data.path: '", data_path, "' has an empty entry between its commas."));
      continue;
    }
    struct stat status {};
    const bool is_pattern = entry.find_first_of("*?[") != std::string::npos && ::lstat(entry.c_str(), &status) != 0;
    if (!is_pattern) {
      files.push_back(entry);
      continue;
    }
    const std::size_t problems_before = problems.size();
    const std::vector<std::string> matches = expand_glob(entry, problems);
    if (matches.empty() && problems.size() == problems_before)
      problems.push_back(cat("data.path: no file matches '", entry, "'."));
    files.insert(files.end(), matches.begin(), matches.end());
  }
  std::map<std::string, std::string> seen;  // real path -> as it was named
  for (const std::string& path : files) {
    std::string problem = problem_of_file(path);
    if (problem.empty()) {
      const auto [other, is_new] = seen.emplace(std::filesystem::canonical(path).string(), path);
      if (!is_new) {
        problem = cat("data.path: '", path, "' is named twice",
                      other->second == path ? std::string() : cat(" (also as '", other->second, "')"),
                      "; each file may be named once.");
      }
    }
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return files;
}

SourceKind source_kind(const std::vector<std::string>& files) {
  PC_CHECK(!files.empty());
  const auto first_of = [&](bool tokens) {
    return std::find_if(files.begin(), files.end(),
                        [&](const std::string& path) { return path.ends_with(".bin") == tokens; });
  };
  const auto tokens = first_of(true), text = first_of(false);
  if (tokens != files.end() && text != files.end()) {
    throw ConfigError(cat("data.path mixes token files ('", *tokens, "') with text ('", *text,
                          "'); all files of a run must be of one kind (names that end in .bin are token files)."));
  }
  return text == files.end() ? SourceKind::tokens : SourceKind::text;
}

}  // namespace potato
