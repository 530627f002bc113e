#include "potato/data/token_cache.hpp"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>

#include "potato/core/error.hpp"
#include "potato/core/hash.hpp"
#include "potato/core/posix_file.hpp"
#include "potato/data/token_file.hpp"
#include "potato/data/tokenizer.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

// What identifies the text of a run without reading it.
struct TextSources {
  std::uint64_t hash = 0;
  std::int64_t num_bytes = 0;
  std::int64_t num_tokens = 0;  // bytes, and end-of-text between two files

  friend bool operator==(const TextSources&, const TextSources&) = default;
};

TextSources look_at_sources(const std::vector<std::string>& files, std::int64_t width_bytes) {
  PC_CHECK(!files.empty());
  TextSources sources;
  std::string identity = cat("width ", width_bytes, '\n');
  for (const std::string& path : files) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw IoError(cat("cannot look at ", path, ": ", system_words(errno)));
    identity += cat(fs::absolute(path).lexically_normal().string(), '\0', status.st_size, ' ', status.st_mtim.tv_sec,
                    ' ', status.st_mtim.tv_nsec, '\n');
    sources.num_bytes += status.st_size;
  }
  sources.num_tokens = sources.num_bytes + static_cast<std::int64_t>(files.size()) - 1;
  sources.hash = mix64(hash_name(identity));
  return sources;
}

std::string cache_file(const TextSources& sources, const std::string& cache_dir) {
  char name[32];
  std::snprintf(name, sizeof(name), "%016llx.tok", static_cast<unsigned long long>(sources.hash));
  return (fs::path(cache_dir) / name).string();
}

bool is_valid(const std::string& path, const TextSources& sources, std::int64_t width_bytes) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  try {
    const TokenFile file = TokenFile::open(path);  // checks the length
    return file.cache_header().source_hash == sources.hash && file.num_tokens() == sources.num_tokens &&
           file.width_bytes() == width_bytes;
  } catch (const ConfigError&) {
    return false;  // not a whole cache: it is written anew
  }
}

// A file beside its final name; removed unless committed.
class PendingFile {
 public:
  explicit PendingFile(std::string final_path) : final_path_(std::move(final_path)) {
    char host[256] = "host";
    ::gethostname(host, sizeof(host) - 1);
    path_ = cat(final_path_, ".tmp.", host, ".", ::getpid());
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file_.is_open()) {
      throw ConfigError(cat("data.cache_dir: '", fs::path(final_path_).parent_path().string(),
                            "' cannot be written to: ", system_words(errno), "."));
    }
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() {
    if (!committed_) ::unlink(path_.c_str());
  }

  void write(const void* data, std::size_t num_bytes) { write_all(file_, path_, data, num_bytes); }

  void commit() {
    if (::fsync(file_.get()) != 0 || ::close(file_.release()) != 0 || ::rename(path_.c_str(), final_path_.c_str()) != 0)
      throw IoError(cat("cannot write ", final_path_, ": ", system_words(errno)));
    committed_ = true;
  }

 private:
  std::string final_path_, path_;
  FileDescriptor file_;
  bool committed_ = false;
};

template <typename T>
void write_tokens(const std::vector<std::string>& files, PendingFile& out) {
  constexpr std::size_t block_bytes = 1 << 18;
  std::vector<unsigned char> text(block_bytes);
  std::vector<T> tokens(block_bytes);
  bool first = true;
  for (const std::string& path : files) {
    constexpr T end_of_text = ByteTokenizer::end_of_text;
    if (!first) out.write(&end_of_text, sizeof(T));
    first = false;
    const FileDescriptor in = open_for_reading(path);
    while (const std::size_t got = read_up_to(in, path, text.data(), block_bytes)) {
      for (std::size_t i = 0; i < got; ++i) tokens[i] = text[i];
      out.write(tokens.data(), got * sizeof(T));
      if (got < block_bytes) break;
    }
  }
}

}  // namespace

std::int64_t token_width_bytes(std::int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

std::string token_cache_path(const std::vector<std::string>& files, const std::string& cache_dir,
                             std::int64_t vocab_size) {
  return cache_file(look_at_sources(files, token_width_bytes(vocab_size)), cache_dir);
}

bool token_cache_is_valid(const std::string& path, const std::vector<std::string>& files, std::int64_t vocab_size) {
  const std::int64_t width_bytes = token_width_bytes(vocab_size);
  return is_valid(path, look_at_sources(files, width_bytes), width_bytes);
}

TokenFileInfo prepare_token_cache(const std::vector<std::string>& files, const std::string& cache_dir,
                                  std::int64_t vocab_size) {
  PC_CHECK(vocab_size >= ByteTokenizer::vocab_size, "vocab_size = ", vocab_size);
  if (cache_dir.empty()) throw ConfigError("data.cache_dir is empty; text files need a folder for their tokens.");
  const std::int64_t width_bytes = token_width_bytes(vocab_size);
  const TextSources sources = look_at_sources(files, width_bytes);
  const std::string path = cache_file(sources, cache_dir);
  if (is_valid(path, sources, width_bytes)) return {path, sources.num_tokens, width_bytes, true};

  std::error_code error;
  fs::create_directories(cache_dir, error);
  if (error) throw ConfigError(cat("data.cache_dir: '", cache_dir, "' cannot be created: ", error.message(), "."));

  PendingFile out(path);
  const TokenCacheHeader header{.width_bytes = static_cast<std::uint32_t>(width_bytes),
                                .num_tokens = sources.num_tokens,
                                .num_text_bytes = sources.num_bytes,
                                .source_hash = sources.hash};
  out.write(&header, sizeof(header));
  width_bytes == 2 ? write_tokens<std::uint16_t>(files, out) : write_tokens<std::uint32_t>(files, out);
  if (look_at_sources(files, width_bytes) != sources)
    throw IoError("a file of data.path changed while it was tokenised; start again once it is complete");
  out.commit();
  PC_CHECK(is_valid(path, sources, width_bytes), path, " was written but does not hold what was read");
  return {path, sources.num_tokens, width_bytes, false};
}

}  // namespace potato
