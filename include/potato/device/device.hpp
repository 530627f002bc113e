// Where memory lies and work runs. `dry` computes nothing: it counts what the same code would allocate and do.
#pragma once

#include <cstdint>
#include <string>

namespace potato {

enum class DeviceKind : std::uint8_t { cpu, cuda, dry };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:3", "dry".
std::string device_name(Device device);

}  // namespace potato
