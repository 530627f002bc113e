// The data × tensor × pipeline grid of ranks. Rank order: tensor varies fastest, then data, then pipeline, so that a
// tensor group's ranks are neighbours.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "potato/comm/communicator.hpp"
#include "potato/comm/gpu_topology.hpp"
#include "potato/config/config.hpp"

namespace potato {

struct GridCoordinates {
  int data = 0;
  int tensor = 0;
  int pipeline = 0;

  friend bool operator==(const GridCoordinates&, const GridCoordinates&) = default;
};

GridCoordinates grid_coordinates(const GridShape& shape, int world_rank);
int grid_rank(const GridShape& shape, const GridCoordinates& coordinates);
// World ranks of the group of `world_rank` along an axis, in group order. For `embedding`: first and last stage of its
// pipeline (one rank when there is one stage), or only itself on stages between.
std::vector<int> grid_group(const GridShape& shape, int world_rank, Axis axis);

struct GpuCommOptions {
  bool deterministic = true;       // nccl: algorithm and protocol pinned, see NcclOptions
  bool multicast = false;          // nccl: NVLink SHARP
  int num_chunks = 1;              // of a pipeline stage
  std::int64_t message_bytes = 0;  // staged: largest point-to-point message; its memory is then pinned at the start
  double timeout_s = 120;          // nccl: how long the host waits for peers to connect and to close
};

// One communicator for each axis. `tensor`, `pipeline` and `world` belong to the compute stream, `data` and `embedding`
// to the communication stream.
struct GridCommunicators {
  GridShape shape;
  GridCoordinates at;
  std::unique_ptr<Communicator> tensor;
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> pipeline;
  std::unique_ptr<Communicator> embedding;
  std::unique_ptr<Communicator> world;

  bool is_first_stage() const noexcept { return at.pipeline == 0; }
  bool is_last_stage() const noexcept { return at.pipeline == shape.pipeline - 1; }

  // All of them: for check_async() at the end of a step, and for NcclWatch.
  std::array<Communicator*, 5> all() const {
    return {tensor.get(), data.get(), pipeline.get(), embedding.get(), world.get()};
  }
};

// Collective over `comm`: every communicator of the grid compares its collectives (comm.check).
void check_collectives(const GridCommunicators& grid, MPI_Comm comm, const FlightRecorder* recorder);

// Collective over `comm`, whose ranks are the grid's world ranks. `data_link` slows the data axis.
GridCommunicators make_mpi_communicators(MPI_Comm comm, const GridShape& shape, const LinkOptions& data_link = {});
// For tensors on this rank's GPU, which becomes the current device; groups of one rank need no transport. `transport`:
// nccl or staged, the same on all ranks (GpuTopology). Collective over `comm`, as above; so is the end of the result,
// unless an exception is on its way. Builds with CUDA only.
GridCommunicators make_gpu_communicators(MPI_Comm comm, const GridShape& shape, Device device, Transport transport,
                                         const GpuCommOptions& options);
// Stands for rank `world_rank` of any grid; needs no MPI.
GridCommunicators make_dry_communicators(const GridShape& shape, int world_rank);

}  // namespace potato
