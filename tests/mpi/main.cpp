// Main of the MPI tests: all ranks run the same test cases; a failure on any rank fails the run on all, and is shown.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "potato/comm/mpi_session.hpp"

int main(int argc, char** argv) {
  potato::prepare_for_oversubscription(potato::read_launch_facts(), 1);
  potato::MpiSession session(&argc, &argv);
  int rank = 0;
  int num_ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  const std::string log = "mpi_test_" + std::to_string(getppid()) + "_rank" + std::to_string(rank) + ".log";
  if (rank != 0 && std::freopen(log.c_str(), "w", stdout) == nullptr) return 1;
  int failures = Catch::Session().run(argc, argv);
  std::cout.flush();
  std::fflush(stdout);
  if (rank != 0 && failures != 0) {
    std::cerr << "--- rank " << rank << " of " << num_ranks << " failed ---\n" << std::ifstream(log).rdbuf();
  }
  if (rank != 0) std::remove(log.c_str());
  int worst = failures;
  MPI_Allreduce(&failures, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return worst == 0 ? 0 : 1;
}
