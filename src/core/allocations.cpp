#include "potato/core/allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace potato {

namespace {

std::atomic<std::int64_t> own_count{0};
std::atomic<std::int64_t> library_count{0};
thread_local int library_depth = 0;

void* counted_alloc(std::size_t bytes, std::size_t alignment) {
  (library_depth > 0 ? library_count : own_count).fetch_add(1, std::memory_order_relaxed);
  if (bytes == 0) bytes = 1;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

AllocationCounts allocation_counts() noexcept {
  return {own_count.load(std::memory_order_relaxed), library_count.load(std::memory_order_relaxed)};
}

LibraryScope::LibraryScope() noexcept { ++library_depth; }
LibraryScope::~LibraryScope() { --library_depth; }

}  // namespace potato

void* operator new(std::size_t bytes) { return potato::counted_alloc(bytes, 0); }
void* operator new[](std::size_t bytes) { return potato::counted_alloc(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return potato::counted_alloc(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return potato::counted_alloc(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
