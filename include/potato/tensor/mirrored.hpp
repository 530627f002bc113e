// A tensor that host and device both work on: tokens, losses, logits to sample from.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// On the CPU both views are one memory and the copies do nothing. On a GPU the host's part lies in pinned memory.
class Mirrored {
 public:
  Mirrored() = default;
  // `host` is the arena of pinned memory; it is left alone on the CPU.
  Mirrored(Arena& device, Arena& host, DType dtype, Shape shape) : device_(device, dtype, shape) {
    if (target_kind(device.device()) == DeviceKind::cuda) host_ = Tensor(host, dtype, shape);
  }

  const TensorView& device() const { return device_.view(); }
  const TensorView& host() const { return host_.is_held() ? host_.view() : device_.view(); }

  // Copies on the stream; the host may touch its part only before the first and after a synchronize() behind the
  // second.
  void to_device(Stream& stream) const { move(host(), device(), stream); }
  void to_host(Stream& stream) const { move(device(), host(), stream); }
  // Only `count` rows from `begin`.
  void rows_to_device(std::int64_t begin, std::int64_t count, Stream& stream) const {
    move(host().rows(begin, count), device().rows(begin, count), stream);
  }

 private:
  void move(const ConstTensorView& source, const TensorView& destination, Stream& stream) const {
    if (host_.is_held()) stream.transfer(destination.data, source.data, source.num_bytes());
  }

  Tensor device_;
  Tensor host_;
};

}  // namespace potato
