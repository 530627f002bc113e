#include "potato/core/allocations.hpp"

#include <atomic>

namespace potato {

namespace {

std::atomic<std::int64_t> own_count{0};
std::atomic<std::int64_t> library_count{0};
thread_local int library_depth = 0;

}  // namespace

AllocationCounts allocation_counts() noexcept {
  return {own_count.load(std::memory_order_relaxed), library_count.load(std::memory_order_relaxed)};
}

void count_allocation() noexcept {
  (library_depth > 0 ? library_count : own_count).fetch_add(1, std::memory_order_relaxed);
}

LibraryScope::LibraryScope() noexcept { ++library_depth; }
LibraryScope::~LibraryScope() { --library_depth; }

}  // namespace potato
