#include "memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "potato/core/error.hpp"
#include "potato/device/device_memory.hpp"

namespace potato {

void* claim_pages(std::int64_t num_bytes, const std::string& owner) {
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(num_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(cat("cannot claim ", num_bytes, " bytes for ", owner, ": ", std::strerror(errno)));
  }
  madvise(memory, static_cast<std::size_t>(num_bytes), MADV_HUGEPAGE);
  return memory;
}

void release_pages(void* memory, std::int64_t num_bytes) noexcept {
  munmap(memory, static_cast<std::size_t>(num_bytes));
}

void* claim_memory(Device device, HostMemory host, std::int64_t num_bytes, const std::string& owner) {
  if (device.kind == DeviceKind::cpu && host == HostMemory::pageable) return claim_pages(num_bytes, owner);
  if constexpr (with_cuda) {
    if (device.kind == DeviceKind::cuda) return cuda::claim_device_memory(device.ordinal, num_bytes, owner);
    return cuda::claim_pinned_memory(num_bytes, owner);
  }
  throw Error("this build has no CUDA back end");
}

void release_memory(Device device, HostMemory host, void* memory, std::int64_t num_bytes) noexcept {
  if (device.kind == DeviceKind::cpu && host == HostMemory::pageable) {
    release_pages(memory, num_bytes);
    return;
  }
  if constexpr (with_cuda) {
    if (device.kind == DeviceKind::cuda) {
      cuda::release_device_memory(memory);
    } else {
      cuda::release_pinned_memory(memory, num_bytes);
    }
  }
}

std::int64_t free_device_memory(Device device) {
  PC_CHECK(device.kind == DeviceKind::cuda, device_name(device));
  if constexpr (with_cuda) return cuda::free_device_memory(device.ordinal);
  throw Error("this build has no CUDA back end");
}

}  // namespace potato
