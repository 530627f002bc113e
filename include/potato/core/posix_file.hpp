// File descriptors that close themselves, and whole reads and writes.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "potato/core/error.hpp"

namespace potato {

// What the system says about an errno value (thread-safe).
inline std::string system_words(int error_number) { return std::generic_category().message(error_number); }

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Opens for reading; throws IoError.
inline FileDescriptor open_for_reading(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) throw IoError(cat("cannot open ", path, ": ", system_words(errno)));
  return file;
}

// Reads up to max_bytes; fewer only at the end of the file. Throws IoError.
inline std::size_t read_up_to(const FileDescriptor& file, const std::string& path, void* out, std::size_t max_bytes) {
  std::size_t done = 0;
  while (done < max_bytes) {
    const ssize_t got = ::read(file.get(), static_cast<char*>(out) + done, max_bytes - done);
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(cat("cannot read ", path, ": ", system_words(errno)));
    done += static_cast<std::size_t>(got);
  }
  return done;
}

// Reads exactly num_bytes from `offset_bytes` on; throws IoError, also where the file ends before.
inline void read_at(const FileDescriptor& file, const std::string& path, void* out, std::int64_t offset_bytes,
                    std::int64_t num_bytes) {
  std::int64_t done = 0;
  while (done < num_bytes) {
    const ssize_t got = ::pread(file.get(), static_cast<char*>(out) + done, static_cast<std::size_t>(num_bytes - done),
                                offset_bytes + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(cat("cannot read ", path, ": ", system_words(errno)));
    if (got == 0) throw IoError(cat(path, " ends at byte ", offset_bytes + done));
    done += got;
  }
}

// What a path names reaches the disk, data and metadata; a folder's entries do where it is a folder. Throws IoError.
inline void sync_path(const std::string& path) {
  const FileDescriptor file = open_for_reading(path);
  if (::fsync(file.get()) != 0) throw IoError(cat("cannot sync ", path, ": ", system_words(errno)));
}

// Writes everything; throws IoError.
inline void write_all(const FileDescriptor& file, const std::string& path, const void* data, std::size_t num_bytes) {
  std::size_t done = 0;
  while (done < num_bytes) {
    const ssize_t put = ::write(file.get(), static_cast<const char*>(data) + done, num_bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw IoError(cat("cannot write ", path, ": ", system_words(errno)));
    done += static_cast<std::size_t>(put);
  }
}

}  // namespace potato
