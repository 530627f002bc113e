// The INI file and the command line.
#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "keys.hpp"
#include "potato/core/error.hpp"

namespace potato {

namespace {

namespace po = boost::program_options;

constexpr const char* usage =
    "usage: potatochat CONFIG.ini [--section.key=value ...], or potatochat verify CHECKPOINT; potatochat --help lists "
    "all "
    "keys";

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// What the parser cannot do: it keeps no line numbers, and stops at the first line that it cannot read.
struct Scan {
  std::map<std::string, std::vector<int>> lines;  // on which each "section.key" stands
  std::string readable;                           // the text, with unreadable lines emptied
};

Scan scan_lines(const std::string& path, const std::string& text, std::vector<std::string>& problems) {
  Scan scan;
  std::istringstream in(text);
  std::string section;
  int number = 0;
  for (std::string raw; std::getline(in, raw);) {
    ++number;
    const std::string line = trimmed(raw.substr(0, raw.find('#')));
    const std::size_t equals = line.find('=');
    if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
      section = line.substr(1, line.size() - 2);
    } else if (equals != std::string::npos && !trimmed(line.substr(0, equals)).empty()) {
      scan.lines[(section.empty() ? "" : section + ".") + trimmed(line.substr(0, equals))].push_back(number);
    } else if (!line.empty()) {
      problems.push_back(
          cat(path, ":", number, ": cannot read \"", line, "\"; lines are [section], key = value, or # comment"));
      raw.clear();
    }
    scan.readable += raw + "\n";
  }
  return scan;
}

// Sets one key or says why not; `place` is "file:line" or "command line".
void apply(Config& config, const std::string& place, const std::string& name, const std::string& value,
           std::vector<std::string>& problems) {
  const ConfigKey* key = find_key(name);
  if (key == nullptr) {
    problems.push_back(cat(place, ": unknown key ", name, " = ", value, "; ", advice_for_unknown(name),
                           " (potatochat --help lists all keys)"));
  } else if (!key->set(config, value)) {
    problems.push_back(cat(place, ": ", name, " = ", value, " is not valid: ", key->valid, " is needed",
                           key->unit.empty() ? "" : " (" + key->unit + ")"));
  }
}

}  // namespace

std::string config_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError(cat("configuration ", path, " is a folder; give the path of an INI file\n", usage));
  }
  std::string result;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw ConfigError(cat("configuration ", path, " cannot be read: ", std::strerror(errno)));
  std::array<char, 4096> block;
  for (std::size_t n; (n = std::fread(block.data(), 1, block.size(), file)) > 0;) result.append(block.data(), n);
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) throw ConfigError(cat("configuration ", path, " cannot be read: ", std::strerror(error)));
  if (result.find('\0') != std::string::npos) throw ConfigError(cat("configuration ", path, " is not a text file"));
  if (result.rfind("\xEF\xBB\xBF", 0) == 0) result.erase(0, 3);  // a byte-order mark
  return result;
}

namespace {

void apply_file(Config& config, const std::string& path, std::vector<std::string>& problems) {
  const auto [lines, readable] = scan_lines(path, config_text(path), problems);
  po::options_description known;
  for (const ConfigKey& key : config_keys()) known.add_options()(key.full_name().c_str(), po::value<std::string>());
  po::parsed_options parsed(&known);
  try {
    std::istringstream in(readable);
    parsed = po::parse_config_file(in, known, true);
  } catch (const po::error& error) {
    problems.push_back(cat(path, ": ", error.what(), "; lines are [section], key = value, or # comment"));
    return;
  }
  std::map<std::string, std::size_t> seen;
  for (const auto& option : parsed.options) {
    const auto found = lines.find(option.string_key);
    const std::size_t occurrence = seen[option.string_key]++;
    const int line = found != lines.end() && occurrence < found->second.size() ? found->second[occurrence] : 0;
    const std::string place = line > 0 ? cat(path, ":", line) : path;
    if (occurrence > 0) {
      problems.push_back(
          cat(place, ": ", option.string_key, " is given twice (first in line ", found->second.front(), "); keep one"));
      continue;
    }
    apply(config, place, option.string_key, option.value.empty() ? "" : option.value.front(), problems);
  }
}

void resolve_defaults(Config& config) {
  if (config.model.ffn_hidden_size == 0) config.model.ffn_hidden_size = 4 * config.model.hidden_size;
  if (config.model.max_position_embeddings == 0) config.model.max_position_embeddings = config.train.sequence_length;
  if (config.comm.timeout_s == 0) {
    constexpr double default_timeout_s = 600;
    const char* given = std::getenv("NCCL_TIMEOUT");
    config.comm.timeout_s = given == nullptr ? default_timeout_s : std::atof(given);
    if (config.comm.timeout_s <= 0) {
      throw ConfigError(cat("NCCL_TIMEOUT = ", given,
                            " of the environment is no number of seconds; change it, or give ", "comm.timeout_s"));
    }
  }
  if (config.data.cache_dir.empty()) config.data.cache_dir = config.run.dir + "/cache";
}

}  // namespace

Invocation parse_command_line(int argc, const char* const* argv) {
  Invocation invocation;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      invocation.action = Invocation::Action::help;
    } else if (word == "--version") {
      invocation.action = Invocation::Action::version;
    } else if (word == "--config-reference") {
      invocation.action = Invocation::Action::print_reference;
    } else if (word == "--print-config") {
      invocation.action = Invocation::Action::print_config;
    } else if (word.rfind("--", 0) == 0) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
      if (equals != std::string::npos) {
        invocation.overrides.emplace_back(name, word.substr(equals + 1));
      } else if (i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0) {
        invocation.overrides.emplace_back(name, argv[++i]);
      } else {
        throw ConfigError(cat("command line: --", name, " needs a value: --", name, "=VALUE\n", usage));
      }
    } else if (word.rfind('-', 0) == 0) {
      throw ConfigError(cat("command line: unknown option ", word, "\n", usage));
    } else if (i == 1 && word == "verify") {
      invocation.action = Invocation::Action::verify;
    } else if (!invocation.config_path.empty()) {
      throw ConfigError(cat("command line: two paths, ", invocation.config_path, " and ", word, "\n", usage));
    } else {
      invocation.config_path = word;
    }
  }
  if (invocation.action == Invocation::Action::verify) {
    if (invocation.config_path.empty()) throw ConfigError(cat("command line: verify needs a checkpoint\n", usage));
    if (!invocation.overrides.empty()) {
      throw ConfigError(cat("command line: verify takes no --", invocation.overrides.front().first, "\n", usage));
    }
  }
  const bool needs_config =
      invocation.action == Invocation::Action::run || invocation.action == Invocation::Action::print_config;
  if (needs_config && invocation.config_path.empty()) {
    const bool torchrun = std::getenv("TORCHELASTIC_RUN_ID") != nullptr || std::getenv("LOCAL_WORLD_SIZE") != nullptr;
    throw ConfigError(cat("command line: no configuration is given\n", usage,
                          torchrun ? "\nthis looks like torchrun: start ranks with mpirun -np N or srun instead" : ""));
  }
  return invocation;
}

Config load_config(const std::string& path, const ConfigOverrides& overrides) {
  Config config;
  std::vector<std::string> problems;
  apply_file(config, path, problems);
  for (const auto& [name, value] : overrides) apply(config, "command line", name, value, problems);
  if (!problems.empty()) throw ConfigError(problems);
  resolve_defaults(config);
  return config;
}

}  // namespace potato
