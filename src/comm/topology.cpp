#include "potato/comm/topology.hpp"

#include <unistd.h>

#include <array>
#include <set>

#include "potato/comm/mpi_check.hpp"
#include "potato/comm/process_grid.hpp"

namespace potato {

int Topology::num_hosts() const {
  return static_cast<int>(std::set<std::string>(host_of_rank.begin(), host_of_rank.end()).size());
}

Topology discover_topology(const HostGroup& world) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  Topology topology;
  topology.host_of_rank = world.all_gather(name.data());
  MPI_Comm local = MPI_COMM_NULL;
  PC_MPI(MPI_Comm_split_type(world.comm(), MPI_COMM_TYPE_SHARED, world.rank(), MPI_INFO_NULL, &local));
  PC_MPI(MPI_Comm_rank(local, &topology.local_rank));
  PC_MPI(MPI_Comm_size(local, &topology.num_local_ranks));
  PC_MPI(MPI_Comm_free(&local));
  return topology;
}

std::vector<std::string> topology_problems(const Topology& topology, const GridShape& shape) {
  std::vector<std::string> problems;
  const auto num_ranks = static_cast<int>(topology.host_of_rank.size());
  for (int rank = 0; rank < num_ranks; rank += static_cast<int>(shape.tensor)) {
    for (const int member : grid_group(shape, rank, Axis::tensor)) {
      const std::string& host = topology.host_of_rank[static_cast<std::size_t>(member)];
      const std::string& first = topology.host_of_rank[static_cast<std::size_t>(rank)];
      if (host == first) continue;
      problems.push_back(
          cat("parallel.tensor = ", shape.tensor, ": the tensor group of rank ", rank, " (", first, ") reaches rank ",
              member, " on another host (", host,
              "); choose parallel.tensor so that it divides the ranks of a host, or place ranks by host"));
      break;
    }
  }
  return problems;
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  PC_MPI(MPI_Get_library_version(text.data(), &length));
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace potato
