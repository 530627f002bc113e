// The communicator for host memory.
#pragma once

#include <mpi.h>

#include <memory>

#include "potato/comm/communicator.hpp"

namespace potato {

// Takes a duplicate of `comm` (collective over it).
std::unique_ptr<Communicator> make_mpi_communicator(Axis axis, MPI_Comm comm, const LinkOptions& link = {});

}  // namespace potato
