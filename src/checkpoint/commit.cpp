#include "commit.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "potato/checkpoint/folder.hpp"
#include "potato/core/posix_file.hpp"
#include "step_folders.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

void replace_text_file(const fs::path& path, const std::string& text) {
  const fs::path beside = path.string() + ".tmp";
  write_synced(beside.string(), text);
  fs::rename(beside, path);
}

// Under a name that no resume looks at first, so that a kill leaves no half checkpoint.
void remove_step(const fs::path& path) {
  std::error_code error;
  const fs::path gone = path.string() + ".tmp";
  fs::rename(path, gone, error);
  if (!error) fs::remove_all(gone, error);
}

}  // namespace

void write_synced(const std::string& path, const std::string& text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) throw IoError(cat("cannot open ", path, ": ", system_words(errno)));
  write_all(file, path, text.data(), text.size());
  if (::fsync(file.get()) != 0) throw IoError(cat("cannot sync ", path, ": ", system_words(errno)));
}

void commit(const std::string& folder, const std::string& temporary, const std::string& final_path) {
  sync_path(temporary);
  if (fs::exists(final_path)) {
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
      throw IoError(cat("cannot replace ", final_path, ": ", system_words(errno)));
    }
  } else {
    fs::rename(temporary, final_path);
  }
  sync_path(folder);
  replace_text_file(fs::path(folder) / "latest", fs::path(final_path).filename().string() + "\n");
  sync_path(folder);
  fs::remove_all(temporary);
}

void remove_old(const std::string& folder, std::int64_t step, std::int64_t keep_last,
                std::int64_t keep_every) noexcept {
  if (keep_last <= 0) return;
  try {
    std::vector<std::int64_t> older;
    for (const std::int64_t found : steps_in(folder)) {
      if (found < step) older.push_back(found);
    }
    std::sort(older.rbegin(), older.rend());
    for (std::size_t i = 0; i < older.size(); ++i) {
      if (static_cast<std::int64_t>(i) + 1 < keep_last) continue;
      if (keep_every > 0 && older[i] % keep_every == 0) continue;
      remove_step(fs::path(folder) / step_name(older[i]));
    }
  } catch (const std::exception&) {  // an older checkpoint too many harms nobody
  }
}

}  // namespace potato
