// Which rank drives which GPU, what carries the data between them, and which cores belong to a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "potato/comm/host_group.hpp"
#include "potato/comm/topology.hpp"

namespace potato {

// What carries tensors between ranks. One for the whole grid, chosen at the start.
enum class Transport : std::uint8_t { mpi, nccl, staged };

std::string_view transport_name(Transport transport);

struct GpuPlace {
  int ordinal = 0;  // among the devices that this process sees
  std::string name;
  std::string bus_id;       // PCI, "0000:3b:00.0"
  int num_devices = 0;      // that this process sees (CUDA_VISIBLE_DEVICES)
  bool shares_gpu = false;  // with another rank
};

struct GpuTopology {
  GpuPlace place;  // of this rank
  int world_rank = 0;
  std::vector<std::string> bus_of_rank;  // all ranks of the world
  Transport transport = Transport::mpi;
  std::string reason;  // why this transport, for the start table
};

// Variables that CUDA reads when it starts; call it before the first CUDA call of the process (and before MPI_Init,
// which may use CUDA), while no other thread runs. What the user has set stays. `num_ranks` of the job.
void prepare_cuda_environment(std::int64_t num_ranks);

// Devices that this process sees; 0 without a driver, and in builds without CUDA.
int num_visible_gpus();

// Every rank must see at least one GPU. Chooses this rank's by its node-local rank, round robin, makes it the current
// device, and agrees on the transport: NCCL where no two ranks of the world share a GPU, else staged. Collective.
GpuTopology discover_gpus(const HostGroup& world, const Topology& topology);

// Keeps the calling thread, and those it starts later, on the cores next to this rank's GPU, as far as the affinity
// mask allows and `threads` cores a rank are left; memory follows by first touch. Otherwise the mask stays. Returns
// what was done, for the start table. Not collective.
std::string bind_near_gpu(const GpuTopology& gpus, const Topology& topology, std::int64_t threads);

// "0-3,8" -> 0 1 2 3 8, as sysfs writes lists of cores; empty where the text is not such a list.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace potato
