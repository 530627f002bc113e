// A block of memory with an owner's name, sized by a dry pass of the same code and claimed once.
//
// Inside, a first-fit free list kept on the host: the same sequence of calls gives the same offsets on every device,
// so the peak that a dry arena counted is exactly what the real one needs. Not thread-safe: one host thread allocates.
// Reuse is ordered by one stream: memory released on the host may still be read by work already enqueued, so all users
// of an arena run on one stream or wait for an event before they release.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "potato/device/device.hpp"

namespace potato {

// Whether host memory can be moved to and from a GPU while the host goes on. Only with CUDA.
enum class HostMemory : std::uint8_t { pageable, pinned };

class Arena {
 public:
  // On `dry` the capacity is ignored. `host` says how memory of the CPU is claimed. Throws Error with needed and
  // available bytes where the memory cannot be had.
  Arena(Device device, std::string owner, std::int64_t capacity_bytes, HostMemory host = HostMemory::pageable);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;

  // Aligned to `alignment_bytes`; on `dry` an address that must not be read. Throws Error where it does not fit.
  void* allocate(std::int64_t num_bytes);
  // `num_bytes` as given to allocate.
  void release(void* memory, std::int64_t num_bytes) noexcept;

  Device device() const noexcept { return device_; }
  const std::string& owner() const noexcept { return owner_; }
  std::int64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  std::int64_t used_bytes() const noexcept { return used_bytes_; }
  std::int64_t peak_bytes() const noexcept { return peak_bytes_; }  // highest end of a block ever in use

  static constexpr std::int64_t alignment_bytes = 256;

 private:
  struct FreeBlock {
    std::int64_t offset_bytes;
    std::int64_t num_bytes;
  };

  Device device_;
  HostMemory host_;
  std::string owner_;
  std::int64_t capacity_bytes_;
  std::int64_t used_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  char* base_ = nullptr;
  std::vector<FreeBlock> free_;  // sorted by offset, never touching
};

}  // namespace potato
