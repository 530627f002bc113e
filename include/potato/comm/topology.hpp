// Which rank runs where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "potato/comm/host_group.hpp"
#include "potato/config/config.hpp"

namespace potato {

struct Topology {
  std::vector<std::string> host_of_rank;
  int local_rank = 0;  // of this rank among those that share its memory
  int num_local_ranks = 1;

  int num_hosts() const;
};

// Collective.
Topology discover_topology(const HostGroup& world);

// A problem for each tensor group that spans hosts: its collectives sit in every layer's path.
std::vector<std::string> topology_problems(const Topology& topology, const GridShape& shape);

// Version text of the MPI library, first line.
std::string mpi_library_version();

}  // namespace potato
