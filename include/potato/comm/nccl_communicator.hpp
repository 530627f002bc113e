// The communicator between GPUs of which each has one rank. Defined in builds with CUDA only.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "potato/comm/communicator.hpp"
#include "potato/device/device.hpp"

namespace potato {

struct NcclOptions {
  // Pins algorithm (Ring) and protocol (Simple), so that the order of sums depends only on the number of elements and
  // the ring. false leaves both to NCCL's own model of the machine: faster for small messages, and for many nodes.
  bool deterministic = true;
  // NVLink SHARP (NVLS): sums inside the switch. Off unless asked for; not together with `deterministic`, which pins
  // another algorithm (ConfigError).
  bool multicast = false;
  // Point-to-point tags are 0 ... num_tags - 1: even ones go to the next rank of the axis, odd ones to the one before,
  // as PipelineExecutor has it (2 for each chunk of a stage). 0: no point-to-point transfers.
  int num_tags = 0;
  // How long the host waits for peers: to connect, to accept an operation, to close.
  double timeout_s = 120;
};

// Sets NCCL's environment; before the first NCCL call of the process, while no other thread runs. What the user has set
// stays, except that multicast is switched off where `options` do not ask for it. make_nccl_communicator calls it too.
void prepare_nccl(const NcclOptions& options);

// "NCCL 2.28.9, NCCL_ALGO=Ring, NCCL_PROTO=Simple, ...": for the start table and the numerics fingerprint.
std::string nccl_settings();

// Collective over `comm`, which is used for the start only. Rank 0's unique id goes through MPI. Returns when all
// connections stand, so that no later call waits on the host for a peer. `device` becomes the current one.
std::unique_ptr<Communicator> make_nccl_communicator(Axis axis, MPI_Comm comm, Device device,
                                                     const NcclOptions& options);

// A thread that looks at communicators twice a second and reports the first trouble once: an asynchronous error, or an
// operation that has run on the device for more than `timeout_s`.
//
// `on_failure` should end the job (abort_job): a collective that was aborted looks complete to the stream, so nothing
// may go on after it. If it returns, all communicators are aborted: a host that waits for the device wakes up, and
// check_async() throws.
class NcclWatch {
 public:
  NcclWatch(std::vector<Communicator*> communicators, double timeout_s,
            std::function<void(const std::string&)> on_failure);
  ~NcclWatch();  // stops the thread; before the communicators end
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

 private:
  void watch(const std::stop_token& stop);

  std::vector<Communicator*> communicators_;
  double timeout_s_;
  std::function<void(const std::string&)> on_failure_;
  std::jthread thread_;
};

}  // namespace potato
