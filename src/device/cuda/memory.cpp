#include "memory.hpp"

#include <sched.h>

#include <algorithm>
#include <iostream>
#include <thread>
#include <vector>

#include "potato/device/cuda.hpp"

namespace potato::cuda {

namespace {

void log_failure(cudaError_t result, const char* what) noexcept {
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  std::cerr << what << ": " << cudaGetErrorString(result) << '\n';
}

// Makes all pages, each core some of them.
void touch_pages(char* memory, std::int64_t num_bytes) {
  constexpr std::int64_t page_bytes = 4096;
  constexpr std::int64_t least_bytes = std::int64_t{64} << 20;  // of a thread
  cpu_set_t allowed;
  const int num_cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  const std::int64_t num_threads = std::clamp<std::int64_t>(num_bytes / least_bytes, 1, num_cores);
  const std::int64_t part_bytes = (num_bytes / num_threads + page_bytes) / page_bytes * page_bytes;
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([=] {
      const std::int64_t end = std::min(num_bytes, (i + 1) * part_bytes);
      for (std::int64_t at = i * part_bytes; at < end; at += page_bytes) const_cast<volatile char*>(memory)[at] = 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
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
  void* memory = claim_pages(num_bytes, owner);
  touch_pages(static_cast<char*>(memory), num_bytes);
  const cudaError_t result = cudaHostRegister(memory, static_cast<std::size_t>(num_bytes), cudaHostRegisterPortable);
  if (result != cudaSuccess) {
    cudaGetLastError();  // clears it
    release_pages(memory, num_bytes);
    throw Error(cat("cannot pin ", num_bytes, " bytes of host memory for ", owner, ": ", cudaGetErrorString(result)));
  }
  return memory;
}

void release_pinned_memory(void* memory, std::int64_t num_bytes) noexcept {
  log_failure(cudaHostUnregister(memory), "cudaHostUnregister");
  release_pages(memory, num_bytes);
}

}  // namespace potato::cuda
