// The communicator for device memory of ranks that share a GPU: pinned host memory and MPI.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "potato/comm/communicator.hpp"
#include "potato/device/arena.hpp"

namespace potato {

struct StagedOptions {
  // Collectives go through one pinned buffer of this size, piece by piece. The pieces, and with them the order of
  // sums, depend only on this, the number of ranks and the tensor.
  std::int64_t piece_bytes = std::int64_t{32} << 20;
  // Pinned memory for point-to-point transfers, claimed at the start: so many slots of so many bytes. More slots, or
  // larger ones, are claimed where a transfer finds none; pinning memory may wait for the device, and the device for a
  // peer that pins memory too, so give here what the schedule needs.
  std::int64_t slot_bytes = 0;
  int num_slots = 0;
  HostMemory host = HostMemory::pinned;  // tests on the CPU: pageable
};

// Takes a duplicate of `comm` (collective over it). Tensors lie on the device of the stream; MPI never sees them.
std::unique_ptr<Communicator> make_staged_communicator(Axis axis, MPI_Comm comm, const StagedOptions& options);

}  // namespace potato
