// The tables at the start and the end of a run.
#pragma once

#include <string>

#include "potato/comm/gpu_topology.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/comm/topology.hpp"
#include "potato/config/config.hpp"
#include "potato/train/engine.hpp"

namespace potato {

struct StartFacts {
  GridShape shape;
  std::string data_description;
  std::string holds;  // this rank's layers
  OwnerBytes planned{};
  std::string host_memory;  // of check_host_memory()
  std::string device;       // of this rank, "cuda:0 NVIDIA H200"
  std::string transport;
  std::string binding;  // of a GPU rank's cores; "" on the CPU
};

struct EndFacts {
  OwnerBytes planned{};
  OwnerBytes peaks{};
  std::int64_t own_allocations = 0;  // of all ranks, after each one's first step
  double train_s = 0;
  double data_bytes_per_step = 0;  // of this rank's collectives along the data axis
  double data_calls_per_step = 0;
};

// What the bits of a result depend on beside the configuration's mathematics.
// `gpus` null: CPU ranks.
std::string numerics_fingerprint(const Config& config, const GridShape& shape, const GpuTopology* gpus);

// Collective; rank 0 prints.
void print_start_table(const Config& config, const HostGroup& world, const Topology& topology, const StartFacts& facts);
void print_end_table(const HostGroup& world, const EndFacts& facts);

}  // namespace potato
