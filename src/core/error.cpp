#include "potato/core/error.hpp"

namespace potato {

namespace {

std::string with_place(const std::string& message, const std::source_location& place) {
  return cat(message, " [", place.file_name(), ":", place.line(), "]");
}

std::string join(const std::vector<std::string>& problems) {
  std::string text;
  for (const auto& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem;
  }
  return text;
}

}  // namespace

Error::Error(const std::string& message, std::source_location place) : std::runtime_error(with_place(message, place)) {}

ConfigError::ConfigError(std::vector<std::string> problems)
    : std::runtime_error(join(problems)), problems_(std::move(problems)) {}

void fail_check(const char* expression, const std::string& message, std::source_location place) {
  throw Error(cat("check failed: ", expression, message.empty() ? "" : ": ", message), place);
}

}  // namespace potato
