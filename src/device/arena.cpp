#include "potato/device/arena.hpp"

#include <algorithm>
#include <utility>

#include "memory.hpp"
#include "potato/core/error.hpp"

namespace potato {

namespace {

constexpr std::int64_t dry_capacity_bytes = std::int64_t{1} << 60;

std::int64_t rounded(std::int64_t num_bytes) {
  constexpr std::int64_t unit = Arena::alignment_bytes;
  return std::max<std::int64_t>((num_bytes + unit - 1) / unit * unit, unit);
}

}  // namespace

Arena::Arena(Device device, std::string owner, std::int64_t capacity_bytes, HostMemory host)
    : device_(device),
      host_(host),
      owner_(std::move(owner)),
      capacity_bytes_(device.kind == DeviceKind::dry ? dry_capacity_bytes : rounded(capacity_bytes)) {
  if (device.kind == DeviceKind::dry) {
    base_ = reinterpret_cast<char*>(std::uintptr_t{1} << 32);  // never read; distinct, aligned, not null
  } else {
    base_ = static_cast<char*>(claim_memory(device, host, capacity_bytes_, owner_));
  }
  free_.reserve(4096);
  free_.push_back({0, capacity_bytes_});
}

Arena::~Arena() {
  if (base_ != nullptr && device_.kind != DeviceKind::dry) release_memory(device_, host_, base_, capacity_bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_),
      host_(other.host_),
      owner_(std::move(other.owner_)),
      capacity_bytes_(other.capacity_bytes_),
      used_bytes_(other.used_bytes_),
      peak_bytes_(other.peak_bytes_),
      base_(std::exchange(other.base_, nullptr)),
      free_(std::move(other.free_)) {}

void* Arena::allocate(std::int64_t num_bytes) {
  const std::int64_t needed = rounded(num_bytes);
  const auto block =
      std::find_if(free_.begin(), free_.end(), [&](const FreeBlock& b) { return b.num_bytes >= needed; });
  PC_CHECK(block != free_.end(), "arena ", owner_, ": ", needed, " bytes needed, capacity ", capacity_bytes_, ", used ",
           used_bytes_);
  const std::int64_t offset = block->offset_bytes;
  block->offset_bytes += needed;
  block->num_bytes -= needed;
  if (block->num_bytes == 0) free_.erase(block);
  used_bytes_ += needed;
  peak_bytes_ = std::max(peak_bytes_, offset + needed);
  return base_ + offset;
}

void Arena::release(void* memory, std::int64_t num_bytes) noexcept {
  const std::int64_t offset = static_cast<char*>(memory) - base_;
  const std::int64_t freed = rounded(num_bytes);
  used_bytes_ -= freed;
  auto next = std::lower_bound(free_.begin(), free_.end(), offset,
                               [](const FreeBlock& b, std::int64_t o) { return b.offset_bytes < o; });
  const bool joins_next = next != free_.end() && offset + freed == next->offset_bytes;
  const bool joins_previous =
      next != free_.begin() && std::prev(next)->offset_bytes + std::prev(next)->num_bytes == offset;
  if (joins_previous) {
    std::prev(next)->num_bytes += freed + (joins_next ? next->num_bytes : 0);
    if (joins_next) free_.erase(next);
  } else if (joins_next) {
    next->offset_bytes = offset;
    next->num_bytes += freed;
  } else {
    free_.insert(next, {offset, freed});
  }
}

}  // namespace potato
