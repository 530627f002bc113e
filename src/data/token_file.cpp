#include "potato/data/token_file.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "potato/core/error.hpp"
#include "potato/core/posix_file.hpp"

namespace potato {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::int64_t llm_c_header_bytes = 1024;
constexpr std::int32_t llm_c_magic = 20240520;
constexpr std::int32_t llm_c_magic_llama3 = 20240801;
constexpr std::int32_t llm_c_version = 1;

struct TokenLayout {
  TokenFormat format = TokenFormat::nano_gpt;
  std::int64_t header_bytes = 0;
  std::int64_t width_bytes = 2;
  std::int64_t num_tokens = 0;
};

TokenLayout llm_c_layout(const std::string& path, const char* data, std::int64_t file_bytes) {
  if (file_bytes < llm_c_header_bytes) {
    throw ConfigError(cat("token file '", path, "' has the magic of llm.c but only ", file_bytes,
                          " bytes; the header alone takes ", llm_c_header_bytes, "."));
  }
  std::int32_t header[3];
  std::memcpy(header, data, sizeof(header));
  if (header[1] != llm_c_version) {
    throw ConfigError(
        cat("token file '", path, "' has llm.c's version ", header[1], "; version ", llm_c_version, " is supported."));
  }
  const std::int64_t num_tokens = header[2];
  const std::int64_t expected_bytes = llm_c_header_bytes + 2 * num_tokens;
  if (num_tokens <= 0)
    throw ConfigError(cat("token file '", path, "' says in its header that it holds ", num_tokens, " tokens."));
  if (file_bytes != expected_bytes) {
    throw ConfigError(cat("token file '", path, "' says in its header that it holds ", num_tokens, " tokens, so ",
                          expected_bytes, " bytes, but it has ", file_bytes, " bytes."));
  }
  return {TokenFormat::llm_c, llm_c_header_bytes, 2, num_tokens};
}

TokenLayout cache_layout(const std::string& path, const char* data, std::int64_t file_bytes, TokenCacheHeader& header) {
  if (file_bytes >= static_cast<std::int64_t>(sizeof(header))) std::memcpy(&header, data, sizeof(header));
  const std::int64_t width_bytes = header.width_bytes;
  if (header.magic != TokenCacheHeader::expected_magic || header.version != TokenCacheHeader::expected_version ||
      (width_bytes != 2 && width_bytes != 4))
    throw ConfigError(cat("'", path, "' is not a token cache of this program; remove it."));
  const std::int64_t body_bytes = file_bytes - static_cast<std::int64_t>(sizeof(header));
  if (header.num_tokens <= 0 || body_bytes % width_bytes != 0 || header.num_tokens != body_bytes / width_bytes) {
    throw ConfigError(cat("the token cache '", path, "' says that it holds ", header.num_tokens, " tokens of ",
                          width_bytes, " bytes, but has ", body_bytes, " bytes of them; remove it."));
  }
  return {TokenFormat::cache, sizeof(header), width_bytes, header.num_tokens};
}

TokenLayout token_file_layout(const std::string& path, const char* data, std::int64_t file_bytes) {
  std::int32_t magic = 0;
  if (file_bytes >= 4) std::memcpy(&magic, data, 4);
  if (magic == llm_c_magic) return llm_c_layout(path, data, file_bytes);
  if (magic == llm_c_magic_llama3) {
    throw ConfigError(cat("token file '", path, "' has llm.c's magic for Llama 3 (", llm_c_magic_llama3,
                          "), which is not supported; ", llm_c_magic, " is."));
  }
  if (file_bytes % 2 != 0) {
    throw ConfigError(cat("token file '", path, "' has ", file_bytes,
                          " bytes and no header; bare tokens take 2 bytes each, so the number must be even."));
  }
  return {TokenFormat::nano_gpt, 0, 2, file_bytes / 2};
}

// First index whose id is > max_id, or -1. Blocks are reduced first, which vectorises; only a bad one is searched.
template <typename T>
std::int64_t find_beyond(const T* ids, std::int64_t num_tokens, T max_id) {
  constexpr std::int64_t block_tokens = 16384;
  for (std::int64_t begin = 0; begin < num_tokens; begin += block_tokens) {
    const std::int64_t end = std::min(begin + block_tokens, num_tokens);
    T highest = 0;
#pragma omp simd reduction(max : highest)
    for (std::int64_t i = begin; i < end; ++i) highest = ids[i] > highest ? ids[i] : highest;
    if (highest <= max_id) continue;
    return std::find_if(ids + begin, ids + end, [&](T id) { return id > max_id; }) - ids;
  }
  return -1;
}

}  // namespace

std::string_view token_format_name(TokenFormat format) {
  switch (format) {
    case TokenFormat::llm_c:
      return "llm.c";
    case TokenFormat::nano_gpt:
      return "nanoGPT";
    case TokenFormat::cache:
      return "cache";
  }
  return "unknown";
}

TokenFile TokenFile::open(const std::string& path) {
  const FileDescriptor descriptor = open_for_reading(path);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) throw IoError(cat("cannot look at ", path, ": ", system_words(errno)));
  if (status.st_size == 0) throw ConfigError(cat("token file '", path, "' is empty (0 bytes)."));

  TokenFile file;
  file.path_ = path;
  file.mapping_bytes_ = static_cast<std::size_t>(status.st_size);
  void* mapping = ::mmap(nullptr, file.mapping_bytes_, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (mapping == MAP_FAILED) throw IoError(cat("cannot map ", path, " into memory: ", system_words(errno)));
  file.mapping_ = mapping;

  const char* data = static_cast<const char*>(mapping);
  const TokenLayout layout = path.ends_with(".tok") ? cache_layout(path, data, status.st_size, file.cache_header_)
                                                    : token_file_layout(path, data, status.st_size);
  file.format_ = layout.format;
  file.header_bytes_ = layout.header_bytes;
  file.width_bytes_ = layout.width_bytes;
  file.num_tokens_ = layout.num_tokens;
  return file;
}

TokenFile::~TokenFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

void TokenFile::swap(TokenFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(format_, other.format_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(header_bytes_, other.header_bytes_);
  std::swap(width_bytes_, other.width_bytes_);
  std::swap(num_tokens_, other.num_tokens_);
  std::swap(cache_header_, other.cache_header_);
}

template <typename Body>
decltype(auto) TokenFile::with_tokens(Body&& body) const {
  const char* tokens = static_cast<const char*>(mapping_) + header_bytes_;
  return width_bytes_ == 2 ? body(reinterpret_cast<const std::uint16_t*>(tokens))
                           : body(reinterpret_cast<const std::uint32_t*>(tokens));
}

std::int64_t TokenFile::raw_id(std::int64_t index) const {
  PC_CHECK(index >= 0 && index < num_tokens_, "token ", index, " of ", num_tokens_, " in ", path_);
  return with_tokens([&](const auto* tokens) { return static_cast<std::int64_t>(tokens[index]); });
}

std::int32_t TokenFile::operator[](std::int64_t index) const { return static_cast<std::int32_t>(raw_id(index)); }

void TokenFile::read(std::int64_t begin, std::int64_t count, std::int32_t* out) const {
  PC_CHECK(begin >= 0 && count >= 0 && begin <= num_tokens_ - count, "tokens ", begin, " + ", count, " of ",
           num_tokens_, " in ", path_);
  with_tokens([&](const auto* tokens) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(tokens[begin + i]);
  });
}

std::int64_t TokenFile::find_id_beyond(std::int64_t vocab_size) const {
  PC_CHECK(vocab_size > 0, "vocab_size = ", vocab_size);
  return with_tokens([&]<typename T>(const T* tokens) -> std::int64_t {
    if (vocab_size - 1 >= static_cast<std::int64_t>(static_cast<T>(-1))) return -1;  // the width holds no such id
    return find_beyond(tokens, num_tokens_, static_cast<T>(vocab_size - 1));
  });
}

TokenStream::TokenStream(std::vector<TokenFile> files) : files_(std::move(files)), starts_{0} {
  PC_CHECK(!files_.empty());
  for (const TokenFile& file : files_) starts_.push_back(starts_.back() + file.num_tokens());
}

TokenStream TokenStream::open(const std::vector<std::string>& paths) {
  std::vector<TokenFile> files;
  std::vector<std::string> problems;
  for (const std::string& path : paths) {
    try {
      files.push_back(TokenFile::open(path));
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return TokenStream(std::move(files));
}

void TokenStream::read(std::int64_t begin, std::int64_t count, std::int32_t* out) const {
  PC_CHECK(begin >= 0 && count >= 0 && begin <= num_tokens() - count, "tokens ", begin, " + ", count, " of ",
           num_tokens());
  auto file = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
  for (; count > 0; ++file) {
    const std::int64_t here = std::min(count, starts_[file + 1] - begin);
    files_[file].read(begin - starts_[file], here, out);
    begin += here;
    count -= here;
    out += here;
  }
}

void TokenStream::check_ids(std::int64_t vocab_size) const {
  std::vector<std::string> problems;
  for (const TokenFile& file : files_) {
    const std::int64_t index = file.find_id_beyond(vocab_size);
    if (index < 0) continue;
    problems.push_back(cat("token file '", file.path(), "' holds id ", file.raw_id(index), " at token ", index,
                           ", but the vocabulary has ", vocab_size, " ids (0 to ", vocab_size - 1, ")."));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

}  // namespace potato
