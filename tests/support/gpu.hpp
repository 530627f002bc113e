// Device tensors for tests of CUDA kernels against their CPU twins, and the one table of tolerances.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "potato/device/arena.hpp"
#include "potato/device/cuda.hpp"
#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"
#include "support/host_matrix.hpp"

namespace potato::test {

inline constexpr Device gpu{DeviceKind::cuda, 0};

// ‖out − reference‖ / ‖reference‖ that a kernel may show for tensors stored as `dtype`, where the reference is the CPU
// twin on the same stored inputs: 16-bit results differ by their last rounding, fp32 by the order of sums.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 6e-4;
    default:
      return 2e-6;
  }
}

// A device, a stream and memory for a test. Streams carry the kernels' workspace.
struct Gpu {
  explicit Gpu(std::int64_t memory_bytes = std::int64_t{1} << 30) : arena(gpu, "test", memory_bytes), stream(gpu, {}) {}
  Arena arena;
  Stream stream;
};

// Host values as `dtype`, and back as double.
inline std::vector<double> rounded_to(DType dtype, const std::vector<double>& values) {
  std::vector<double> out(values.size());
  dispatch_float(dtype, [&](auto zero) {
    using S = decltype(zero);
    for (std::size_t i = 0; i < values.size(); ++i) {
      out[i] = static_cast<double>(static_cast<Compute<S>>(S(static_cast<Compute<S>>(values[i]))));
    }
  });
  return out;
}

// A tensor in host and device memory with the same values; `dtype` any of fp32, bf16, fp16.
class Twin {
 public:
  Twin(Gpu& on, DType dtype, Shape shape, const std::vector<double>& values)
      : gpu_(on),
        bytes_(static_cast<std::size_t>(shape.num_elems() * dtype_bytes(dtype))),
        device_(on.arena, dtype, shape) {
    set(values);
  }
  // Uniform in [−scale, scale).
  Twin(Gpu& on, DType dtype, Shape shape, unsigned seed, double scale = 1)
      : Twin(on, dtype, shape, random_tensor<double>(shape, seed, scale).data) {}

  void set(const std::vector<double>& values) {
    dispatch_float(device_.view().dtype, [&](auto zero) {
      using S = decltype(zero);
      auto* out = reinterpret_cast<S*>(bytes_.data());
      for (std::size_t i = 0; i < values.size(); ++i) out[i] = S(static_cast<Compute<S>>(values[i]));
    });
    gpu_.stream.transfer(device_.view().data, bytes_.data(), device_.view().num_bytes());
    gpu_.stream.synchronize();
  }

  TensorView host() { return {bytes_.data(), device_.view().dtype, device_.view().shape, Device{}}; }
  TensorView device() { return device_.view(); }

  std::vector<double> host_values() const { return values_of(bytes_); }
  // Waits for the stream.
  std::vector<double> device_values() const {
    std::vector<std::byte> bytes(bytes_.size());
    gpu_.stream.transfer(bytes.data(), device_.view().data, device_.view().num_bytes());
    gpu_.stream.synchronize();
    return values_of(bytes);
  }

  // ‖device − host‖ / ‖host‖; NaN where anything is not finite.
  double distance() const {
    const std::vector<double> a = device_values(), b = host_values();
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return NAN;
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
  }

 private:
  std::vector<double> values_of(const std::vector<std::byte>& bytes) const {
    std::vector<double> out;
    dispatch_float(device_.view().dtype, [&](auto zero) {
      using S = decltype(zero);
      const auto* in = reinterpret_cast<const S*>(bytes.data());
      for (std::size_t i = 0; i < bytes.size() / sizeof(S); ++i) {
        out.push_back(static_cast<double>(static_cast<Compute<S>>(in[i])));
      }
    });
    return out;
  }

  Gpu& gpu_;
  std::vector<std::byte> bytes_;
  Tensor device_;
};

// Token ids or targets on host and device.
class IntTwin {
 public:
  IntTwin(Gpu& on, const std::vector<std::int32_t>& values)
      : values_(values), device_(on.arena, DType::i32, {static_cast<std::int64_t>(values.size())}) {
    on.stream.transfer(device_.view().data, values_.data(), device_.view().num_bytes());
    on.stream.synchronize();
  }
  TensorView host() { return {values_.data(), DType::i32, device_.view().shape, Device{}}; }
  TensorView device() { return device_.view(); }

 private:
  std::vector<std::int32_t> values_;
  Tensor device_;
};

// The CPU twins' stream; references are the slow part of these tests.
inline Stream twin_stream() {
  return cpu_stream(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U)));
}

inline constexpr DType gpu_dtypes[] = {DType::f32, DType::bf16, DType::f16};

}  // namespace potato::test
