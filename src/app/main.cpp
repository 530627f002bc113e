// potatochat: parse, bootstrap, run, end.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "potato/comm/abort.hpp"
#include "potato/comm/gpu_topology.hpp"
#include "potato/comm/host_group.hpp"
#include "potato/comm/mpi_session.hpp"
#include "potato/comm/nccl_communicator.hpp"
#include "potato/config/config.hpp"
#include "potato/core/error.hpp"
#include "potato/core/version.hpp"
#include "potato/modes/train.hpp"
#include "potato/modes/verify.hpp"

namespace {

using namespace potato;

constexpr int exit_user_mistake = 2;

void print_problems(const ConfigError& error) {
  for (const auto& problem : error.problems()) std::fprintf(stderr, "potatochat: %s\n", problem.c_str());
  std::fflush(stderr);
}

// --help and its like: what needs no ranks.
bool print_and_leave(const Invocation& invocation, bool is_root) {
  std::string text;
  switch (invocation.action) {
    case Invocation::Action::help:
      text = help_text();
      break;
    case Invocation::Action::version:
      text = cat("potatochat ", version(), " (", git_commit(), ")\n");
      break;
    case Invocation::Action::print_reference:
      text = reference_markdown();
      break;
    case Invocation::Action::print_config:
      text = to_ini(load_config(invocation.config_path, invocation.overrides));
      break;
    case Invocation::Action::run:
    case Invocation::Action::verify:
      return false;
  }
  if (is_root) std::fputs(text.c_str(), stdout);
  return true;
}

// Fills run.threads and checks it against the affinity mask.
void resolve_threads(Config& config, const LaunchFacts& facts) {
  if (config.run.threads == 0) {
    config.run.threads = std::max<std::int64_t>(1, facts.allowed_cores / facts.local_ranks);
  }
  if (config.run.threads > facts.allowed_cores) {
    throw ConfigError(cat("run.threads = ", config.run.threads, ", but this rank may use ", facts.allowed_cores,
                          " core(s); lower it, or give ranks more cores (mpirun --bind-to none, or --cpus-per-task "
                          "under Slurm)"));
  }
}

int run(int argc, char** argv) {
  const LaunchFacts facts = read_launch_facts();
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += cat(i > 0 ? " " : "", argv[i]);

  Config config;
  Invocation invocation;
  std::string config_given;
  std::vector<std::string> problems;
  try {
    invocation = parse_command_line(argc, argv);
    const char* rank_text = std::getenv("OMPI_COMM_WORLD_RANK");
    if (print_and_leave(invocation, rank_text == nullptr || std::string(rank_text) == "0")) {
      if (facts.launcher_ranks > 1) MpiSession session(&argc, &argv);
      return 0;
    }
    if (invocation.action == Invocation::Action::run) {
      config = load_config(invocation.config_path, invocation.overrides);
      config_given = config_text(invocation.config_path);
    }
    resolve_threads(config, facts);
  } catch (const ConfigError& error) {
    problems = error.problems();
  }
  if (problems.empty() && prepare_for_oversubscription(facts, config.run.threads)) {
    execv("/proc/self/exe", argv);  // OpenMP reads its waiting policy when the program is loaded
  }
  if (!problems.empty() && facts.launcher_ranks == 1) throw ConfigError(problems);

  if (config.checkpoint.io != MpiIo::automatic) setenv("OMPI_MCA_io", to_text(config.checkpoint.io).c_str(), 1);
  prepare_cuda_environment(facts.launcher_ranks);
  if constexpr (with_cuda) prepare_nccl({.deterministic = config.run.deterministic});
  MpiSession session(&argc, &argv);
  try {
    const HostGroup world(MPI_COMM_WORLD);
    try {
      const std::string launch = launch_problem(facts, world.num_ranks());
      if (!launch.empty()) problems.push_back(launch);
      world.agree(problems);
      if (invocation.action == Invocation::Action::verify) return verify_mode(invocation.config_path, world);
      return train_mode(config, world, command_line, config_given);
    } catch (const ConfigError& error) {
      if (world.rank() == 0) print_problems(error);
      return exit_user_mistake;
    }
  } catch (const std::exception& error) {
    abort_job(error.what(), config.run.abort_timeout_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const potato::ConfigError& error) {
    print_problems(error);
    return exit_user_mistake;
  } catch (const std::exception& error) {
    potato::abort_job(error.what(), 30);
  }
}
