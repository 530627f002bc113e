// Text turned into tokens once, and kept in a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace potato {

struct TokenFileInfo {
  std::string path;
  std::int64_t num_tokens = 0;
  std::int64_t width_bytes = 0;  // of one token
  bool reused = false;           // it was there already
};

// Bytes of one token in a cache: 2 for a vocabulary of up to 65536 ids, else 4. An id is never cut.
std::int64_t token_width_bytes(std::int64_t vocab_size);

// Where prepare_token_cache puts (or finds) the tokens of `files` as they are now: a pure function of the files'
// absolute paths, sizes and modification times and of the token width. Throws IoError where a file cannot be looked at.
std::string token_cache_path(const std::vector<std::string>& files, const std::string& cache_dir,
                             std::int64_t vocab_size);

// Whether `path` is a whole cache of `files` as they are now.
bool token_cache_is_valid(const std::string& path, const std::vector<std::string>& files, std::int64_t vocab_size);

// Tokenises text files (bytes, one end-of-text token between two files) into token_cache_path(...), unless a valid
// cache is there. Works in blocks: needs little memory whatever the files' size. The file is written beside, flushed
// and renamed, so that nobody ever sees half of it; several processes may do this at once. Not collective: one process
// for each file system suffices. Throws ConfigError where cache_dir cannot be made or written to, IoError where reading
// or writing fails (a full disk) or a source changes meanwhile; then nothing is left behind.
TokenFileInfo prepare_token_cache(const std::vector<std::string>& files, const std::string& cache_dir,
                                  std::int64_t vocab_size);

}  // namespace potato
