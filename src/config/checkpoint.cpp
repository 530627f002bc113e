// Values of [checkpoint] that are more than a word or a number.
#include <algorithm>
#include <charconv>

#include "potato/config/config.hpp"
#include "potato/core/error.hpp"

namespace potato {

CheckpointFile checkpoint_file(const std::string& files, const std::vector<std::string>& host_of_rank, int world_rank) {
  const auto num_ranks = static_cast<int>(host_of_rank.size());
  if (files == "single") return {0, 1};
  if (files == "per_rank") return {world_rank, num_ranks};
  if (files == "per_node") {
    std::vector<std::string> hosts;  // in the order of their first ranks
    for (const std::string& host : host_of_rank) {
      if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
    const auto own = std::find(hosts.begin(), hosts.end(), host_of_rank[static_cast<std::size_t>(world_rank)]);
    return {static_cast<int>(own - hosts.begin()), static_cast<int>(hosts.size())};
  }
  const int num_files = std::stoi(files);
  return {static_cast<int>(static_cast<std::int64_t>(world_rank) * num_files / num_ranks), num_files};
}

int deflate_level(const std::string& compression) {
  if (compression == "none") return 0;
  if (compression.size() == 10 && compression.starts_with("deflate(") && compression[8] >= '1' &&
      compression[8] <= '9' && compression[9] == ')') {
    return compression[8] - '0';
  }
  throw ConfigError(
      cat("checkpoint.compression = ", compression, " is not valid: none, or deflate(1) to deflate(9), is needed"));
}

std::vector<std::pair<std::string, std::string>> mpi_io_hints(const std::string& hints) {
  const auto trimmed = [](const std::string& text) {
    const std::size_t begin = text.find_first_not_of(' ');
    return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
  };
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t begin = 0; begin < hints.size();) {
    const std::size_t end = std::min(hints.find(';', begin), hints.size());
    const std::string pair = trimmed(hints.substr(begin, end - begin));
    begin = end + 1;
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || trimmed(pair.substr(0, equals)).empty() ||
        trimmed(pair.substr(equals + 1)).empty()) {
      throw ConfigError(
          cat("checkpoint.hints: cannot read \"", pair, "\"; name=value pairs, separated by ;, are needed"));
    }
    pairs.emplace_back(trimmed(pair.substr(0, equals)), trimmed(pair.substr(equals + 1)));
  }
  return pairs;
}

}  // namespace potato
