// MPI from start to end, and what must be set before it starts.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace potato {

// What the launcher's environment and the affinity mask say, before MPI_Init.
struct LaunchFacts {
  std::int64_t local_ranks = 1;     // ranks on this host, as the launcher says
  std::int64_t launcher_ranks = 1;  // ranks of the job, as the launcher says
  std::int64_t allowed_cores = 1;   // of this process's affinity mask
  std::string launcher;             // "mpirun", "Slurm", "PMI", or "" when started alone
};

LaunchFacts read_launch_facts();

// Sets what an oversubscribed host needs: ranks that yield while they wait (Open MPI), threads that sleep. Must run
// before MPI_Init. `threads` per rank. Variables that the user has set stay. Returns true where the host is
// oversubscribed and OpenMP's waiting policy had to be set, which takes effect only when the program starts anew.
bool prepare_for_oversubscription(const LaunchFacts& facts, std::int64_t threads);

// The first object of `main`. Asks for MPI_THREAD_MULTIPLE and throws ConfigError where it is not given, since gradient
// reduction runs beside the forward and backward passes. The destructor finalizes, except while unwinding.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  int uncaught_;
};

// case-20: N processes that each believe to be alone. Returns a problem, or "" if MPI and the launcher agree.
std::string launch_problem(const LaunchFacts& facts, int num_mpi_ranks);

}  // namespace potato
