#include "potato/kernels/libraries.hpp"

#include "cuda/library_versions.hpp"
#include "potato/device/device.hpp"

namespace potato {

std::string cuda_library_versions() {
  if constexpr (with_cuda) return cuda::library_versions();
  return "no CUDA";
}

bool has_cudnn() {
  if constexpr (with_cuda) return cuda::has_cudnn();
  return false;
}

}  // namespace potato
