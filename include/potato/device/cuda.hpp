// For code of the CUDA back end only: checked calls, and a stream's own handle.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "potato/core/error.hpp"
#include "potato/device/stream.hpp"

namespace potato {

// A failed call of the CUDA runtime. `what()` holds the expression, CUDA's name and text of the error, and the place.
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

inline void check_cuda(cudaError_t result, const char* expression,
                       std::source_location place = std::source_location::current()) {
  if (result == cudaSuccess) [[likely]]
    return;
  throw CudaError(cat(expression, ": ", cudaGetErrorName(result), ", ", cudaGetErrorString(result)), place);
}

inline cudaStream_t cuda_stream(const Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); }

}  // namespace potato

#define PC_CUDA(call) ::potato::check_cuda((call), #call)
