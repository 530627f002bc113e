// NCCL's handle, and checking of its calls.
#pragma once

#include <nccl.h>

#include <source_location>
#include <string>

#include "potato/core/error.hpp"

namespace potato {

// A failed call of NCCL, or one that its peers did not answer in time.
class NcclError : public Error {
 public:
  explicit NcclError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

// ncclInProgress is no error: see NcclComm::settle.
inline ncclResult_t check_nccl(ncclResult_t result, const char* expression, ncclComm_t comm,
                               std::source_location place = std::source_location::current()) {
  if (result == ncclSuccess || result == ncclInProgress) [[likely]]
    return result;
  const char* last = ncclGetLastError(comm);
  throw NcclError(cat(expression, ": ", ncclGetErrorString(result), last != nullptr ? cat("; ", last) : ""), place);
}

// A communicator of NCCL. Its calls do not block (ncclConfig_t::blocking = 0), so that a peer that never comes ends in
// an error after `timeout_s`, not in a hang: whoever gets ncclInProgress waits with settle(). The destructor aborts; a
// communicator that has done its work is closed.
class NcclComm {
 public:
  NcclComm() = default;
  // Collective over the `num_ranks` ranks that share `id`; on the current device. max_ctas = 0: as many as NCCL wants.
  NcclComm(const ncclUniqueId& id, int rank, int num_ranks, int max_ctas, double timeout_s);
  ~NcclComm() { abort(); }
  NcclComm(NcclComm&& other) noexcept;
  NcclComm& operator=(NcclComm&&) = delete;

  ncclComm_t get() const noexcept { return comm_; }

  // Waits until the host's part of a call is done, where it gave ncclInProgress.
  void settle(ncclResult_t result, const char* expression) const;
  // What failed in the background; "" if nothing did.
  std::string async_error() const;
  // Collective. All work must be done.
  void close();
  // Ends kernels that are running, and forgets the handle.
  void abort() noexcept;

 private:
  ncclComm_t comm_ = nullptr;
  double timeout_s_ = 0;
};

}  // namespace potato

// Checks, and waits where the call goes on in the background. `comm`: an NcclComm.
#define PC_NCCL(call, comm) (comm).settle(::potato::check_nccl((call), #call, (comm).get()), #call)
