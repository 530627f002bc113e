// Whether what a run will claim fits the GPU, before anything is claimed.
#pragma once

#include "potato/comm/gpu_topology.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/train/engine.hpp"

namespace potato {

// Throws one ConfigError on all ranks where the ranks of a GPU need more than it has free: needed, available, and the
// settings that would make it fit, found by dry runs. Collective.
void check_gpu_memory(const HostGroup& world, const Topology& topology, const GpuTopology& gpus, const Config& config,
                      const GridShape& shape, const OwnerBytes& planned);

}  // namespace potato
