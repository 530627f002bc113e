// How much memory this process's host lets it have.
#pragma once

#include <cstdint>
#include <string>

namespace potato {

struct HostMemoryLimit {
  std::int64_t cgroup_bytes = 0;     // least limit of this process's cgroup and the ones around it; 0: none
  std::int64_t mem_total_bytes = 0;  // of the host; 0: unknown

  // The least of both that is known; 0: nothing is.
  std::int64_t bytes() const noexcept;
};

// Version 2 cgroups (memory.max) and version 1 (memory.limit_in_bytes). `proc` and `cgroup_root` are where the kernel
// shows its files; tests give others. What cannot be read counts as not there.
HostMemoryLimit host_memory_limit(const std::string& proc = "/proc", const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace potato
