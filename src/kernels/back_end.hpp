// The way from a kernel's host wrapper to a back end.
//
// A wrapper checks its tensors, accounts the cost, and then either calls the CUDA back end (namespace cuda, same
// signature) or enqueues the CPU twin:
//
//   stream.account(flops, bytes);
//   if constexpr (with_cuda) {
//     if (on_cuda(stream)) return cuda::add_to(x, y, stream);
//   }
//   dispatch_float(...) { stream.enqueue([...] { cpu::add_to<Compute<S>>(In(x, n), InOut(y, n), n); }); }
#pragma once

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

inline bool on_cuda(const Stream& stream) { return stream.device().kind == DeviceKind::cuda; }

inline void check_device(const Stream& stream, const ConstTensorView& view) {
  PC_CHECK(view.device == stream.device(), "tensor on ", device_name(view.device), ", stream on ",
           device_name(stream.device()));
}

// `view` must have the dtype that statistics and gradients beside an activation of `dtype` have.
inline void check_compute_dtype(const char* name, const ConstTensorView& view, DType dtype) {
  PC_CHECK(view.dtype == compute_dtype(dtype), name, " is ", dtype_name(view.dtype), ", expected ",
           dtype_name(compute_dtype(dtype)));
}

}  // namespace potato
