// Token files mapped into memory, and several of them read as one stream.
//
// Formats, all little-endian:
//   llm.c    `.bin`: 256 int32 of header (magic 20240520, version 1, number of tokens, zeros), then uint16 tokens
//   nanoGPT  `.bin` without that magic: bare uint16 tokens
//   cache    `.tok`: what prepare_token_cache writes: TokenCacheHeader, then uint16 or uint32 tokens
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace potato {

enum class TokenFormat : std::uint8_t { llm_c, nano_gpt, cache };

std::string_view token_format_name(TokenFormat format);

struct TokenCacheHeader {
  static constexpr std::uint64_t expected_magic = 0x4E454B4F544F5450ULL;  // "PTOTOKEN"
  static constexpr std::uint32_t expected_version = 1;

  std::uint64_t magic = expected_magic;
  std::uint32_t version = expected_version;
  std::uint32_t width_bytes = 0;    // of one token: 2 or 4
  std::int64_t num_tokens = 0;      // end-of-text tokens included
  std::int64_t num_text_bytes = 0;  // of the sources
  std::uint64_t source_hash = 0;    // of the sources' paths, sizes, modification times, and the width
  std::uint64_t reserved[3] = {};
};
static_assert(sizeof(TokenCacheHeader) == 64);

// One memory-mapped token file, read-only. Move-only; owns the mapping.
class TokenFile {
 public:
  // Maps `path`; a name that ends in ".tok" is a cache, any other llm.c's or nanoGPT's. Throws ConfigError where the
  // content is not one of the formats or disagrees with the file's length, IoError where the system refuses.
  static TokenFile open(const std::string& path);

  TokenFile(TokenFile&& other) noexcept { swap(other); }
  TokenFile& operator=(TokenFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~TokenFile();

  const std::string& path() const noexcept { return path_; }
  TokenFormat format() const noexcept { return format_; }
  std::int64_t width_bytes() const noexcept { return width_bytes_; }
  std::int64_t num_tokens() const noexcept { return num_tokens_; }

  std::int32_t operator[](std::int64_t index) const;

  // out[0 .. count) = tokens [begin, begin + count). Thread-safe; allocates nothing; throws Error out of range.
  void read(std::int64_t begin, std::int64_t count, std::int32_t* out) const;

  // Index of the first token whose id is >= vocab_size, or -1. Reads the whole file.
  std::int64_t find_id_beyond(std::int64_t vocab_size) const;

  // The id at `index`, unsigned as in the file.
  std::int64_t raw_id(std::int64_t index) const;

  // The header of a cache, else zeros.
  const TokenCacheHeader& cache_header() const noexcept { return cache_header_; }

 private:
  TokenFile() = default;
  void swap(TokenFile& other) noexcept;
  template <typename Body>
  decltype(auto) with_tokens(Body&& body) const;

  std::string path_;
  TokenFormat format_ = TokenFormat::nano_gpt;
  void* mapping_ = nullptr;  // owned
  std::size_t mapping_bytes_ = 0;
  std::int64_t header_bytes_ = 0;
  std::int64_t width_bytes_ = 2;
  std::int64_t num_tokens_ = 0;
  TokenCacheHeader cache_header_{.magic = 0, .version = 0};
};

// Token files one after the other, as one sequence of tokens. Nothing is inserted between them. Move-only.
class TokenStream {
 public:
  explicit TokenStream(std::vector<TokenFile> files);

  // Opens all files; the ConfigErrors of all of them are thrown as one.
  static TokenStream open(const std::vector<std::string>& paths);

  std::int64_t num_tokens() const noexcept { return starts_.back(); }
  const std::vector<TokenFile>& files() const noexcept { return files_; }

  // out[0 .. count) = tokens [begin, begin + count). Thread-safe; allocates nothing; throws Error out of range.
  void read(std::int64_t begin, std::int64_t count, std::int32_t* out) const;

  // Reads everything; throws ConfigError that names file, index and id of the first id >= vocab_size of each file.
  void check_ids(std::int64_t vocab_size) const;

 private:
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> starts_;  // starts_[i]: tokens before file i; one entry more than files_
};

}  // namespace potato
