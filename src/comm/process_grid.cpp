#include "potato/comm/process_grid.hpp"

#include <algorithm>

#include "potato/comm/mpi_check.hpp"
#include "potato/comm/mpi_communicator.hpp"
#include "potato/comm/nccl_communicator.hpp"
#include "potato/comm/staged_communicator.hpp"

namespace potato {

GridCoordinates grid_coordinates(const GridShape& shape, int world_rank) {
  PC_CHECK(world_rank >= 0 && world_rank < shape.data * shape.tensor * shape.pipeline, "rank ", world_rank);
  return {static_cast<int>(world_rank / shape.tensor % shape.data), static_cast<int>(world_rank % shape.tensor),
          static_cast<int>(world_rank / (shape.tensor * shape.data))};
}

int grid_rank(const GridShape& shape, const GridCoordinates& at) {
  return static_cast<int>(at.tensor + shape.tensor * (at.data + shape.data * at.pipeline));
}

std::vector<int> grid_group(const GridShape& shape, int world_rank, Axis axis) {
  GridCoordinates at = grid_coordinates(shape, world_rank);
  std::vector<int> group;
  const auto along = [&](int& coordinate, std::int64_t count) {
    for (coordinate = 0; coordinate < count; ++coordinate) group.push_back(grid_rank(shape, at));
  };
  switch (axis) {
    case Axis::world:
      for (int i = 0; i < shape.data * shape.tensor * shape.pipeline; ++i) group.push_back(i);
      break;
    case Axis::data:
      along(at.data, shape.data);
      break;
    case Axis::tensor:
      along(at.tensor, shape.tensor);
      break;
    case Axis::pipeline:
      along(at.pipeline, shape.pipeline);
      break;
    case Axis::embedding:
      if (at.pipeline != 0 && at.pipeline != shape.pipeline - 1) return {world_rank};
      at.pipeline = 0;
      group.push_back(grid_rank(shape, at));
      at.pipeline = static_cast<int>(shape.pipeline) - 1;
      if (shape.pipeline > 1) group.push_back(grid_rank(shape, at));
      break;
  }
  return group;
}

namespace {

template <typename Make>
GridCommunicators make_communicators(const GridShape& shape, int world_rank, Make&& make) {
  GridCommunicators grid;
  grid.shape = shape;
  grid.at = grid_coordinates(shape, world_rank);
  grid.tensor = make(Axis::tensor);
  grid.data = make(Axis::data);
  grid.pipeline = make(Axis::pipeline);
  grid.embedding = make(Axis::embedding);
  grid.world = make(Axis::world);
  return grid;
}

}  // namespace

namespace {

// make(axis, group's MPI communicator), which is the callee's to use until it returns; collective over `comm`.
template <typename Make>
GridCommunicators make_on_groups(MPI_Comm comm, const GridShape& shape, Make&& make) {
  int world_rank = 0;
  int num_ranks = 0;
  PC_MPI(MPI_Comm_rank(comm, &world_rank));
  PC_MPI(MPI_Comm_size(comm, &num_ranks));
  PC_CHECK(shape.data * shape.tensor * shape.pipeline == num_ranks, "the grid does not have ", num_ranks, " ranks");
  return make_communicators(shape, world_rank, [&](Axis axis) {
    const std::vector<int> group = grid_group(shape, world_rank, axis);
    const auto place = std::find(group.begin(), group.end(), world_rank) - group.begin();
    MPI_Comm split = MPI_COMM_NULL;
    PC_MPI(MPI_Comm_split(comm, group.front(), static_cast<int>(place), &split));
    PC_MPI(MPI_Comm_set_errhandler(split, MPI_ERRORS_RETURN));
    auto communicator = make(axis, split, static_cast<int>(group.size()));
    PC_MPI(MPI_Comm_free(&split));
    return communicator;
  });
}

}  // namespace

void check_collectives(const GridCommunicators& grid, MPI_Comm comm, const FlightRecorder* recorder) {
  const auto all = grid.all();
  make_on_groups(comm, grid.shape, [&](Axis axis, MPI_Comm group, int num_ranks) {
    const auto own = std::find_if(all.begin(), all.end(), [&](Communicator* c) { return c->axis() == axis; });
    PC_CHECK(own != all.end(), axis_name(axis));
    if (num_ranks > 1) (*own)->set_check(std::make_unique<CollectiveCheck>(group, axis_name(axis).data(), recorder));
    return std::unique_ptr<Communicator>();
  });
}

GridCommunicators make_mpi_communicators(MPI_Comm comm, const GridShape& shape, const LinkOptions& data_link) {
  return make_on_groups(comm, shape, [&](Axis axis, MPI_Comm group, int) {
    return make_mpi_communicator(axis, group, axis == Axis::data ? data_link : LinkOptions{});
  });
}

GridCommunicators make_gpu_communicators(MPI_Comm comm, const GridShape& shape, Device device, Transport transport,
                                         const GpuCommOptions& options) {
  PC_CHECK(device.kind == DeviceKind::cuda && transport != Transport::mpi, "transport ", transport_name(transport),
           " on ", device_name(device));
  // One tag for each chunk and direction (PipelineExecutor). A send of each may be under way, and one receive.
  const int num_tags = 2 * options.num_chunks;
  return make_on_groups(comm, shape, [&](Axis axis, MPI_Comm group, int num_ranks) -> std::unique_ptr<Communicator> {
    if (num_ranks == 1) return make_local_communicator(axis);
    const bool is_pipeline = axis == Axis::pipeline;
    if (transport == Transport::staged) {
      StagedOptions staged;
      if (is_pipeline || axis == Axis::world) staged.piece_bytes = std::int64_t{1} << 20;  // they reduce a few numbers
      if (is_pipeline && options.message_bytes > 0) {
        staged.slot_bytes = options.message_bytes;
        staged.num_slots = num_tags + 1;
      }
      return make_staged_communicator(axis, group, staged);
    }
    if constexpr (with_cuda) {
      return make_nccl_communicator(axis, group, device,
                                    {.deterministic = options.deterministic,
                                     .multicast = options.multicast,
                                     .num_tags = is_pipeline ? num_tags : 0,
                                     .timeout_s = options.timeout_s});
    }
    throw Error("this build has no CUDA back end");
  });
}

GridCommunicators make_dry_communicators(const GridShape& shape, int world_rank) {
  return make_communicators(shape, world_rank, [&](Axis axis) {
    const std::vector<int> group = grid_group(shape, world_rank, axis);
    const auto place = std::find(group.begin(), group.end(), world_rank) - group.begin();
    return make_dry_communicator(axis, static_cast<int>(place), static_cast<int>(group.size()));
  });
}

}  // namespace potato
