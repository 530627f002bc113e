// What this build computes with.
#pragma once

#include <string>

namespace potato::cuda {

std::string library_versions();
bool has_cudnn();

}  // namespace potato::cuda
