#include "memory.hpp"

#include <iostream>

#include "potato/device/cuda.hpp"

namespace potato::cuda {

namespace {

void log_failure(cudaError_t result, const char* what) noexcept {
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  std::cerr << what << ": " << cudaGetErrorString(result) << '\n';
}

}  // namespace

std::int64_t free_device_memory(int ordinal) {
  PC_CUDA(cudaSetDevice(ordinal));
  std::size_t free_bytes = 0, total_bytes = 0;
  PC_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<std::int64_t>(free_bytes);
}

void* claim_device_memory(int ordinal, std::int64_t num_bytes, const std::string& owner) {
  PC_CUDA(cudaSetDevice(ordinal));
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, static_cast<std::size_t>(num_bytes));
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears it
    throw Error(cat("cuda:", ordinal, ": ", num_bytes, " bytes needed for ", owner, ", ", free_device_memory(ordinal),
                    " available"));
  }
  check_cuda(result, "cudaMalloc");
  return memory;
}

void release_device_memory(void* memory) noexcept { log_failure(cudaFree(memory), "cudaFree"); }

void* claim_pinned_memory(std::int64_t num_bytes, const std::string& owner) {
  void* memory = nullptr;
  const cudaError_t result = cudaHostAlloc(&memory, static_cast<std::size_t>(num_bytes), cudaHostAllocPortable);
  if (result != cudaSuccess) {
    throw Error(cat("cannot pin ", num_bytes, " bytes of host memory for ", owner, ": ", cudaGetErrorString(result)));
  }
  return memory;
}

void release_pinned_memory(void* memory) noexcept { log_failure(cudaFreeHost(memory), "cudaFreeHost"); }

}  // namespace potato::cuda
