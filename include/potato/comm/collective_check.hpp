// comm.check: before a collective runs, its ranks compare what each of them is about to do.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "potato/core/flight_recorder.hpp"
#include "potato/device/stream.hpp"

namespace potato {

// What must be equal on all ranks of a collective.
struct CollectiveSignature {
  std::int64_t op = 0;  // FlightOp
  std::int64_t num_elems = 0;
  std::int64_t dtype = 0;
  std::int64_t detail = 0;  // ReduceOp of a reduction, root of a broadcast
  std::int64_t step = 0;    // of the run
  std::int64_t sequence = 0;

  friend bool operator==(const CollectiveSignature&, const CollectiveSignature&) = default;
};

// Owns a communicator of its own beside the one that it checks.
class CollectiveCheck {
 public:
  // Collective over `comm`. `name` of the axis; `recorder` (may be null) knows the step.
  CollectiveCheck(MPI_Comm comm, const char* name, const FlightRecorder* recorder);
  ~CollectiveCheck();
  CollectiveCheck(const CollectiveCheck&) = delete;
  CollectiveCheck& operator=(const CollectiveCheck&) = delete;

  // Enqueues the comparison; it throws Error on the stream, on all ranks, naming the first rank that differs from rank
  // 0 of the group, and in what. Sequence and step are filled in here.
  void enqueue(CollectiveSignature signature, Stream& stream);

 private:
  void compare(CollectiveSignature signature);

  MPI_Comm comm_ = MPI_COMM_NULL;
  const char* name_;
  const FlightRecorder* recorder_;
  std::int64_t sequence_ = 0;
  std::vector<CollectiveSignature> all_;
  std::vector<int> world_ranks_;
};

}  // namespace potato
