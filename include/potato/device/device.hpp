// Where memory lies and work runs. `dry` computes nothing: it counts what the same code would allocate and do.
#pragma once

#include <cstdint>
#include <string>

namespace potato {

enum class DeviceKind : std::uint8_t { cpu, cuda, dry };

// Whether this build has the CUDA back end; a constant of the build, so that nothing refers to what is not there.
inline constexpr bool with_cuda = POTATO_WITH_CUDA != 0;

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;
  DeviceKind stands_for = DeviceKind::cpu;  // `dry` only: whose memory and streams it counts

  friend bool operator==(const Device&, const Device&) = default;
};

// The kind of device whose code path is taken: on `dry` that of the device it stands for.
constexpr DeviceKind target_kind(Device device) {
  return device.kind == DeviceKind::dry ? device.stands_for : device.kind;
}

// "cpu", "cuda:3", "dry".
std::string device_name(Device device);

}  // namespace potato
