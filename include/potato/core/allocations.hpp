// Counts calls of operator new, so that a run can prove that it allocates nothing after its first step.
//
// The program (and any test that asks) links the replacement in src/core/counting_new.cpp. Calls made while the thread
// is inside a LibraryScope are the library's own and are counted apart.
#pragma once

#include <cstdint>

namespace potato {

struct AllocationCounts {
  std::int64_t own = 0;      // calls of operator new by our code, all threads
  std::int64_t library = 0;  // calls made inside a LibraryScope
};

AllocationCounts allocation_counts() noexcept;

// Called by the replaced operator new.
void count_allocation() noexcept;

// Marks that this thread runs a library's code (MPI, oneDNN, HDF5) until the end of the scope. Nests.
class LibraryScope {
 public:
  LibraryScope() noexcept;
  ~LibraryScope();
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;
};

}  // namespace potato
