// Typed errors and the check that captures its expression. Knows nothing of MPI or devices.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace potato {

// Concatenates anything that can be written to a stream: cat("rank ", 3, " of ", 8).
template <typename... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  out.precision(12);
  (out << ... << args);
  return out.str();
}

// A failure of the program or of what it stands on. `what()` ends with the place of the throw.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::source_location place = std::source_location::current());
};

// One or more mistakes of the user: a key, a value, a grid, a file. Every entry of `problems()` is one
// self-contained message. The program prints all of them once and exits with code 2.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::vector<std::string> problems);
  explicit ConfigError(const std::string& problem) : ConfigError(std::vector<std::string>{problem}) {}
  const std::vector<std::string>& problems() const noexcept { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// A file that cannot be opened, read or written, or a full disk. Holds the system's own words.
class IoError : public Error {
 public:
  explicit IoError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

[[noreturn]] void fail_check(const char* expression, const std::string& message, std::source_location place);

}  // namespace potato

// Checks an internal invariant in every build type: PC_CHECK(a == b, "a = ", a, ", b = ", b).
#define PC_CHECK(condition, ...)                                                                                       \
  do {                                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                                     \
      ::potato::fail_check(#condition, ::potato::cat("" __VA_OPT__(, ) __VA_ARGS__), std::source_location::current()); \
  } while (false)
