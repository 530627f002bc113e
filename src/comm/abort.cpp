#include "potato/comm/abort.hpp"

#include <mpi.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace potato {

void abort_job(const std::string& message, double timeout_s) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  const bool in_mpi = initialized != 0 && finalized == 0;
  int rank = 0;
  if (in_mpi) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "potatochat: rank %d on %s failed: %s\n", rank, host.data(), message.c_str());
  std::fflush(stderr);
  std::thread([timeout_s] {
    std::this_thread::sleep_for(std::chrono::duration<double>(timeout_s));
    _exit(1);
  }).detach();
  if (in_mpi) MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(1);
}

}  // namespace potato
