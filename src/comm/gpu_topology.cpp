#include "potato/comm/gpu_topology.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "cuda/gpu_query.hpp"
#include "potato/core/error.hpp"
#include "potato/device/device.hpp"

namespace potato {

std::string_view transport_name(Transport transport) {
  switch (transport) {
    case Transport::mpi:
      return "mpi";
    case Transport::nccl:
      return "nccl";
    case Transport::staged:
      return "staged";
  }
  return "unknown";
}

void prepare_cuda_environment(std::int64_t num_ranks) {
  if (num_ranks < 2) return;
  // Streams that share a hardware queue wait for each other. A send that waits for its peer must not hold up the
  // compute stream (see nccl_communicator.cpp), so we want the largest number of queues.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // CUDA loads a kernel when it is first launched, and may wait for the device then. If the device is waiting for
  // a peer that in turn waits for our launch, neither goes on; so kernels are loaded at the start.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int num_visible_gpus() {
  if constexpr (with_cuda) return cuda::num_devices();
  return 0;
}

GpuTopology discover_gpus(const HostGroup& world, const Topology& topology) {
  GpuTopology gpus;
  gpus.world_rank = world.rank();
  std::vector<std::string> problems;
  if (!with_cuda) {
    problems.emplace_back(
        "run.device = cuda: this program was built without CUDA; build with the preset cuda, or use run.device = cpu");
  } else if (num_visible_gpus() == 0) {
    problems.push_back(cat(
        "run.device = cuda: rank ", world.rank(), " on ", topology.host_of_rank[static_cast<std::size_t>(world.rank())],
        " sees no GPU (driver, CUDA_VISIBLE_DEVICES, --gpus-per-task); use run.device = cpu, or give "
        "each rank a GPU"));
  }
  world.agree(problems);
  if constexpr (with_cuda) gpus.place = cuda::select_device(topology.local_rank);
  gpus.bus_of_rank = world.all_gather(gpus.place.bus_id);
  std::map<std::pair<std::string, std::string>, int> ranks_of_gpu;
  const auto gpu_of = [&](std::size_t rank) { return std::pair(topology.host_of_rank[rank], gpus.bus_of_rank[rank]); };
  for (std::size_t rank = 0; rank < gpus.bus_of_rank.size(); ++rank) ++ranks_of_gpu[gpu_of(rank)];
  gpus.place.shares_gpu = ranks_of_gpu[gpu_of(static_cast<std::size_t>(world.rank()))] > 1;
  const auto most = std::max_element(ranks_of_gpu.begin(), ranks_of_gpu.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  gpus.transport = most->second == 1 ? Transport::nccl : Transport::staged;
  gpus.reason = most->second == 1 ? cat("each of ", ranks_of_gpu.size(), " rank(s) has a GPU of its own")
                                  : cat(most->second, " ranks share GPU ", most->first.second, " of ",
                                        most->first.first, ", which NCCL cannot serve");
  return gpus;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.find_last_not_of(" \n") + 1;
  while (at < end) {
    int first = 0;
    auto result = std::from_chars(at, end, first);
    if (result.ec != std::errc() || first < 0) return {};
    int last = first;
    if (result.ptr < end && *result.ptr == '-') {
      result = std::from_chars(result.ptr + 1, end, last);
      if (result.ec != std::errc() || last < first || last >= CPU_SETSIZE) return {};
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = result.ptr;
    if (at < end && *at++ != ',') return {};
  }
  return cpus;
}

namespace {

// The cores next to a PCI device as sysfs writes them; "" where it does not say.
std::string local_cpu_list(const std::string& bus_id) {
  std::ifstream in("/sys/bus/pci/devices/" + bus_id + "/local_cpulist");
  std::string text;
  std::getline(in, text);
  return text;
}

}  // namespace

std::string bind_near_gpu(const GpuTopology& gpus, const Topology& topology, std::int64_t threads) {
  const std::string list = local_cpu_list(gpus.place.bus_id);
  const std::vector<int> near = parse_cpu_list(list);
  if (near.empty()) return "as started: the system does not say which cores are next to the GPU";
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return "as started: the affinity mask cannot be read";
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int cpu : near) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &mask)) CPU_SET(cpu, &wanted);
  }
  const int count = CPU_COUNT(&wanted);
  if (CPU_EQUAL(&wanted, &mask)) return cat("as started: ", count, " core(s), all next to the GPU");
  // Ranks whose GPUs have the same neighbours will share these cores.
  const std::string& host = topology.host_of_rank[static_cast<std::size_t>(gpus.world_rank)];
  std::int64_t num_ranks = 0;
  for (std::size_t rank = 0; rank < gpus.bus_of_rank.size(); ++rank) {
    num_ranks += topology.host_of_rank[rank] == host && local_cpu_list(gpus.bus_of_rank[rank]) == list ? 1 : 0;
  }
  if (count < threads * num_ranks) {
    return cat("as started: of ", CPU_COUNT(&mask), " core(s), ", count, " next to the GPU, too few for ", num_ranks,
               " rank(s) of ", threads, " thread(s)");
  }
  if (sched_setaffinity(0, sizeof(wanted), &wanted) != 0) return "as started: the affinity mask cannot be changed";
  return cat("bound to the ", count, " core(s) next to the GPU (of ", CPU_COUNT(&mask), "); memory by first touch");
}

}  // namespace potato
