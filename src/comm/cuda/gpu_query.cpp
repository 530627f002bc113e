#include "gpu_query.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "potato/device/cuda.hpp"

namespace potato::cuda {

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver, or no device: that is an answer
  return 0;
}

GpuPlace select_device(int local_rank) {
  GpuPlace place;
  PC_CUDA(cudaGetDeviceCount(&place.num_devices));
  place.ordinal = local_rank % place.num_devices;
  PC_CUDA(cudaSetDevice(place.ordinal));
  cudaDeviceProp properties{};
  PC_CUDA(cudaGetDeviceProperties(&properties, place.ordinal));
  place.name = properties.name;
  std::array<char, 32> bus_id{};
  PC_CUDA(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), place.ordinal));
  place.bus_id = bus_id.data();
  // As sysfs writes it: lower case, and four digits of the domain.
  std::transform(place.bus_id.begin(), place.bus_id.end(), place.bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (place.bus_id.size() == 16 && place.bus_id.starts_with("0000")) place.bus_id.erase(0, 4);
  return place;
}

}  // namespace potato::cuda
