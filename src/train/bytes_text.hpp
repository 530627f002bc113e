// Byte counts as people read them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace potato {

// "1.50 GB", "12.00 MB": decimal units.
inline std::string bytes_text(std::int64_t num_bytes) {
  char text[32];
  const auto bytes = static_cast<double>(num_bytes);
  std::snprintf(text, sizeof(text), bytes >= 1e9 ? "%.2f GB" : "%.2f MB", bytes * (bytes >= 1e9 ? 1e-9 : 1e-6));
  return text;
}

}  // namespace potato
