// What the CUDA runtime says about the devices of this process.
#pragma once

#include "potato/comm/gpu_topology.hpp"

namespace potato::cuda {

int num_devices();
// The device for a node-local rank, made current.
GpuPlace select_device(int local_rank);

}  // namespace potato::cuda
