// Which libraries compute.
#pragma once

#include <string>

namespace potato {

// "CUDA 13.0 (driver 13.0), cuBLASLt 13.0.0, cuDNN 9.13.0"; "no CUDA" in builds without.
std::string cuda_library_versions();

// Whether cuDNN is part of this build.
bool has_cudnn();

}  // namespace potato
