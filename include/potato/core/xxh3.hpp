// XXH3 with 64 bits (Yann Collet's xxHash, through its library): checksums of data, not of secrets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace potato {

std::uint64_t xxh3(const void* data, std::int64_t num_bytes);
inline std::uint64_t xxh3(std::string_view text) { return xxh3(text.data(), static_cast<std::int64_t>(text.size())); }

// The same, of data that comes in parts.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void add(const void* data, std::int64_t num_bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 hexadecimal digits.
std::string hash_text(std::uint64_t hash);
// The number that 16 hexadecimal digits (0-9, a-f) stand for; false where `text` is anything else.
bool parse_hash(std::string_view text, std::uint64_t& hash);

}  // namespace potato
