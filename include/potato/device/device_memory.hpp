// What a GPU has.
#pragma once

#include <cstdint>

#include "potato/device/device.hpp"

namespace potato {

// Bytes that could be claimed now. Throws Error for anything but a CUDA device of a build with CUDA.
std::int64_t free_device_memory(Device device);

}  // namespace potato
