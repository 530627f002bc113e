#include "potato/core/xxh3.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace potato {

std::uint64_t xxh3(const void* data, std::int64_t num_bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(num_bytes));
}

struct Xxh3::State {
  XXH3_state_t state;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Xxh3::~Xxh3() = default;

void Xxh3::add(const void* data, std::int64_t num_bytes) {
  XXH3_64bits_update(&state_->state, data, static_cast<std::size_t>(num_bytes));
}

std::uint64_t Xxh3::value() const { return XXH3_64bits_digest(&state_->state); }

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

bool parse_hash(std::string_view text, std::uint64_t& hash) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() != 16 || !std::all_of(text.begin(), text.end(), is_digit)) return false;
  return std::from_chars(text.data(), text.data() + text.size(), hash, 16).ec == std::errc();
}

}  // namespace potato
