#include "library_versions.hpp"

#include <cublasLt.h>

#include "cudnn_attention.hpp"
#include "potato/device/cuda.hpp"

namespace potato::cuda {

std::string library_versions() {
  int runtime = 0;
  int driver = 0;
  PC_CUDA(cudaRuntimeGetVersion(&runtime));
  PC_CUDA(cudaDriverGetVersion(&driver));
  std::string text = cat("CUDA ", runtime / 1000, ".", runtime % 1000 / 10, " (driver ", driver / 1000, ".",
                         driver % 1000 / 10, "), cuBLASLt ", cublasLtGetVersion());
  if constexpr (with_cudnn) text += cat(", cuDNN ", cudnn_version());
  return text;
}

bool has_cudnn() { return with_cudnn; }

}  // namespace potato::cuda
