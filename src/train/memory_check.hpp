// Whether what a run will claim fits, before anything is claimed.
#pragma once

#include <string>

#include "potato/comm/gpu_topology.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/train/engine.hpp"

namespace potato {

// Throws one ConfigError on all ranks where the ranks of a GPU need more than it has free: needed, available, and the
// settings that would make it fit, found by dry runs. Collective.
void check_gpu_memory(const HostGroup& world, const Topology& topology, const GpuTopology& gpus, const Config& config,
                      const GridShape& shape, const OwnerBytes& planned);

// The same for the memory of hosts (case-25): run.host_memory_bytes, else the cgroup's limit or the host's memory.
// Returns what was found on rank 0's host, for the start table. Collective.
std::string check_host_memory(const HostGroup& world, const Topology& topology, const Config& config,
                              const GridShape& shape, DeviceKind kind, const OwnerBytes& planned);

}  // namespace potato
