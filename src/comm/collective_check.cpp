#include "potato/comm/collective_check.hpp"

#include "potato/comm/mpi_check.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/dtype.hpp"

namespace potato {

namespace {

std::string described(const CollectiveSignature& signature) {
  return cat(flight_name(static_cast<FlightOp>(signature.op)), " of ", signature.num_elems, " ",
             dtype_name(static_cast<DType>(signature.dtype)), " in step ", signature.step,
             static_cast<FlightOp>(signature.op) == FlightOp::broadcast ? cat(" from rank ", signature.detail) : "");
}

}  // namespace

CollectiveCheck::CollectiveCheck(MPI_Comm comm, const char* name, const FlightRecorder* recorder)
    : name_(name), recorder_(recorder) {
  const LibraryScope library;
  PC_MPI(MPI_Comm_dup(comm, &comm_));
  PC_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  int num_ranks = 1;
  PC_MPI(MPI_Comm_size(comm_, &num_ranks));
  all_.resize(static_cast<std::size_t>(num_ranks));
  world_ranks_.resize(static_cast<std::size_t>(num_ranks));
  int world_rank = 0;
  PC_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  PC_MPI(MPI_Allgather(&world_rank, 1, MPI_INT, world_ranks_.data(), 1, MPI_INT, comm_));
}

CollectiveCheck::~CollectiveCheck() { MPI_Comm_free(&comm_); }

void CollectiveCheck::enqueue(CollectiveSignature signature, Stream& stream) {
  signature.sequence = ++sequence_;
  if (recorder_ != nullptr) signature.step = recorder_->record().step.load(std::memory_order_relaxed);
  stream.enqueue([this, signature] { compare(signature); });
}

void CollectiveCheck::compare(CollectiveSignature signature) {
  const LibraryScope library;
  PC_MPI(MPI_Allgather(&signature, sizeof(signature), MPI_BYTE, all_.data(), sizeof(signature), MPI_BYTE, comm_));
  for (std::size_t rank = 1; rank < all_.size(); ++rank) {
    if (all_[rank] == all_[0]) continue;
    throw Error(cat("comm.check: collective ", signature.sequence, " on axis ", name_, " differs: rank ",
                    world_ranks_[0], " does ", described(all_[0]), ", rank ", world_ranks_[rank], " does ",
                    described(all_[rank])));
  }
}

}  // namespace potato
