#include "potato/device/device.hpp"

#include "potato/core/error.hpp"

namespace potato {

std::string device_name(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return cat("cuda:", device.ordinal);
    case DeviceKind::dry:
      return "dry";
  }
  return "unknown";
}

}  // namespace potato
