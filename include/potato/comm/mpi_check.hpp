// Checking of MPI calls: every communicator has MPI_ERRORS_RETURN, every call goes through PC_MPI.
#pragma once

#include <mpi.h>

#include <source_location>
#include <string>

#include "potato/core/error.hpp"

namespace potato {

// An MPI call failed. Holds MPI's own text.
class MpiError : public Error {
 public:
  MpiError(const char* expression, int code, std::source_location place);
  int code() const noexcept { return code_; }

 private:
  int code_;
};

}  // namespace potato

#define PC_MPI(call)                                                                 \
  do {                                                                               \
    const int pc_mpi_code = (call);                                                  \
    if (pc_mpi_code != MPI_SUCCESS) [[unlikely]]                                     \
      throw ::potato::MpiError(#call, pc_mpi_code, std::source_location::current()); \
  } while (false)
