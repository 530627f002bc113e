#include "potato/comm/mpi_session.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "potato/comm/mpi_check.hpp"

namespace potato {

namespace {

// The value of an environment variable that holds a positive number; 0 otherwise. "4(x2)" reads as 4.
std::int64_t number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return 0;
  std::int64_t value = 0;
  const auto result = std::from_chars(text, text + std::strlen(text), value);
  return result.ec == std::errc() ? value : 0;
}

std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

MpiError::MpiError(const char* expression, int code, std::source_location place)
    : Error(cat(expression, ": ", mpi_text(code)), place), code_(code) {}

LaunchFacts read_launch_facts() {
  LaunchFacts facts;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) facts.allowed_cores = std::max(1, CPU_COUNT(&mask));
  struct Launcher {
    const char* name;
    const char* ranks;
    const char* local_ranks;
  };
  constexpr std::array<Launcher, 4> launchers = {{{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                                  {"mpirun", "MPI_LOCALNRANKS", "MPI_LOCALNRANKS"},
                                                  {"PMI", "PMI_SIZE", "PMI_LOCAL_SIZE"},
                                                  {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"}}};
  for (const auto& launcher : launchers) {
    const std::int64_t ranks = number_in_environment(launcher.ranks);
    if (ranks <= 0) continue;
    facts.launcher = launcher.name;
    facts.launcher_ranks = ranks;
    facts.local_ranks = std::max<std::int64_t>(1, number_in_environment(launcher.local_ranks));
    break;
  }
  return facts;
}

bool prepare_for_oversubscription(const LaunchFacts& facts, std::int64_t threads) {
  if (facts.local_ranks * threads <= facts.allowed_cores) return false;
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  if (threads == 1 || std::getenv("OMP_WAIT_POLICY") != nullptr) return false;
  setenv("OMP_WAIT_POLICY", "passive", 0);
  return true;
}

MpiSession::MpiSession(int* argc, char*** argv) : uncaught_(std::uncaught_exceptions()) {
  int provided = MPI_THREAD_SINGLE;
  PC_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
  PC_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  PC_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw ConfigError(
        cat("this MPI gives thread level ", provided, ", but MPI_THREAD_MULTIPLE (", MPI_THREAD_MULTIPLE,
            ") is needed to reduce gradients beside the backward pass; use an Open MPI built with thread support"));
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() == uncaught_) MPI_Finalize();
}

std::string launch_problem(const LaunchFacts& facts, int num_mpi_ranks) {
  if (facts.launcher_ranks == num_mpi_ranks) return "";
  return cat("the launcher (", facts.launcher, ") started ", facts.launcher_ranks, " processes, but MPI sees ",
             num_mpi_ranks,
             " rank(s) here: the program and its launcher belong to different MPI installations, so each process would "
             "train alone; start it with the mpirun of the MPI that it was built with, or with srun --mpi=pmix");
}

}  // namespace potato
