// Claims and releases the memory that arenas divide; one implementation for each kind of device.
#pragma once

#include <cstdint>
#include <string>

#include "potato/device/arena.hpp"
#include "potato/device/device.hpp"

namespace potato {

// Throws Error that names `owner`, the bytes needed and, where it is known, those available.
// Zero pages of the host's, large ones where the system has them; not touched yet.
void* claim_pages(std::int64_t num_bytes, const std::string& owner);
void release_pages(void* memory, std::int64_t num_bytes) noexcept;
void* claim_memory(Device device, HostMemory host, std::int64_t num_bytes, const std::string& owner);
void release_memory(Device device, HostMemory host, void* memory, std::int64_t num_bytes) noexcept;

namespace cuda {

void* claim_device_memory(int ordinal, std::int64_t num_bytes, const std::string& owner);
void release_device_memory(void* memory) noexcept;
std::int64_t free_device_memory(int ordinal);
// Host memory that copies move at full speed; zeros. Its pages are made by all cores that this process may use, since
// one alone takes half a minute for 100 GB.
void* claim_pinned_memory(std::int64_t num_bytes, const std::string& owner);
void release_pinned_memory(void* memory, std::int64_t num_bytes) noexcept;

}  // namespace cuda

}  // namespace potato
