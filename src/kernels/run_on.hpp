// The one way from a kernel's host wrapper to a back end: account the cost, then run the CPU twin on the stream.
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// Costs are the algorithm's own: multiplications and additions, and each tensor's bytes once per read or write.
template <typename Task>
void run_on(Stream& stream, double flops, double bytes, const Task& cpu_task) {
  stream.account(flops, bytes);
  PC_CHECK(stream.device().kind != DeviceKind::cuda, "this build has no CUDA back end");
  stream.enqueue(cpu_task);
}

inline void check_device(const Stream& stream, const ConstTensorView& view) {
  PC_CHECK(view.device == stream.device(), "tensor on ", device_name(view.device), ", stream on ",
           device_name(stream.device()));
}

}  // namespace potato
