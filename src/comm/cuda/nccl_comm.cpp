#include "nccl_comm.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>

#include "potato/comm/nccl_communicator.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/clock.hpp"

namespace potato {

NcclComm::NcclComm(const ncclUniqueId& id, int rank, int num_ranks, int max_ctas, double timeout_s)
    : timeout_s_(timeout_s) {
  const LibraryScope library;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  try {
    PC_NCCL(ncclCommInitRankConfig(&comm_, num_ranks, id, rank, &config), *this);
  } catch (...) {
    abort();  // no destructor runs for an object that was not made
    throw;
  }
}

NcclComm::NcclComm(NcclComm&& other) noexcept
    : comm_(std::exchange(other.comm_, nullptr)), timeout_s_(other.timeout_s_) {}

void NcclComm::settle(ncclResult_t result, const char* expression) const {
  if (result != ncclInProgress) return;
  const double start_s = now_s();
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) check_nccl(state, expression, comm_);
    if (now_s() - start_s > timeout_s_) {
      throw NcclError(cat(expression, ": no answer from the other ranks for ", timeout_s_, " s"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::string NcclComm::async_error() const {
  if (comm_ == nullptr) return "";
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  if (result != ncclSuccess) state = result;
  if (state == ncclSuccess || state == ncclInProgress) return "";
  const char* last = ncclGetLastError(comm_);
  return cat(ncclGetErrorString(state), last != nullptr ? cat("; ", last) : "");
}

void NcclComm::close() {
  if (comm_ == nullptr) return;
  const LibraryScope library;
  PC_NCCL(ncclCommFinalize(comm_), *this);
  check_nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy", nullptr);
}

void NcclComm::abort() noexcept {
  if (comm_ == nullptr) return;
  const ncclResult_t result = ncclCommAbort(std::exchange(comm_, nullptr));
  if (result != ncclSuccess && result != ncclInProgress) {
    std::cerr << "ncclCommAbort: " << ncclGetErrorString(result) << '\n';
  }
}

void prepare_nccl(const NcclOptions& options) {
  if (options.deterministic && options.multicast) {
    throw ConfigError(
        "NVLink multicast was asked for together with run.deterministic = true, which pins NCCL's ring algorithm; "
        "set run.deterministic = false, or leave multicast off");
  }
  if (!options.multicast) setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (options.deterministic) {
    setenv("NCCL_ALGO", "Ring", 0);
    setenv("NCCL_PROTO", "Simple", 0);
  }
  // By default NCCL connects an algorithm when it is first used, and the host waits for its peers then, in the middle
  // of a step. Ring alone is connected by the first all-reduce; for more than that, NCCL must connect all at the start.
  const char* algorithm = std::getenv("NCCL_ALGO");
  if (algorithm == nullptr || std::strcmp(algorithm, "Ring") != 0) setenv("NCCL_RUNTIME_CONNECT", "0", 1);
}

std::string nccl_settings() {
  int version = 0;
  ncclGetVersion(&version);
  std::string text = cat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  constexpr std::array names = {"NCCL_ALGO",     "NCCL_PROTO",          "NCCL_NVLS_ENABLE",   "NCCL_MIN_CTAS",
                                "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS",  "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS",
                                "NCCL_BUFFSIZE", "NCCL_COLLNET_ENABLE", "NCCL_P2P_DISABLE",   "NCCL_SHM_DISABLE"};
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) text += cat(", ", name, "=", value);
  }
  return text;
}

}  // namespace potato
