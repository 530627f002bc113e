// Host tensors for tests of kernels: a vector with a shape.
#pragma once

#include <random>
#include <vector>

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato::test {

template <typename T>
struct HostTensor {
  Shape shape;
  std::vector<T> data;

  explicit HostTensor(Shape dims, T fill = T{0})
      : shape(dims), data(static_cast<std::size_t>(dims.num_elems()), fill) {}

  T& operator[](std::int64_t i) { return data[static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const { return data[static_cast<std::size_t>(i)]; }
  TensorView view() { return {data.data(), dtype_of<T>, shape, Device{}}; }
  ConstTensorView view() const { return {data.data(), dtype_of<T>, shape, Device{}}; }
};

// Uniform in [−scale, scale).
template <typename T>
HostTensor<T> random_tensor(Shape shape, unsigned seed, double scale = 1) {
  HostTensor<T> tensor(shape);
  std::mt19937 generator(seed);
  for (T& value : tensor.data) value = static_cast<T>(scale * (generator() * 0x1.0p-31 - 1));
  return tensor;
}

inline Stream cpu_stream(int threads = 1) {
  StreamOptions options;
  options.threads = threads;
  options.inline_mode = true;
  return Stream(Device{}, std::move(options));
}

}  // namespace potato::test
