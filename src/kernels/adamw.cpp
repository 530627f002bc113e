#include "potato/kernels/adamw.hpp"

#include <source_location>

#include "back_end.hpp"
#include "cpu/adamw.hpp"
#include "cuda/adamw.hpp"

namespace potato {

namespace {

// Shapes and dtypes of everything but the norm; all on `device`.
void check_arrays(Device device, const TensorView& weight, const TensorView& working_copy,
                  const ConstTensorView& gradient, const TensorView& exp_avg, const TensorView& exp_avg_sq) {
  const auto check_device = [&](const ConstTensorView& view) {
    PC_CHECK(view.device == device, "tensor on ", device_name(view.device), ", expected ", device_name(device));
  };
  for (const ConstTensorView& view :
       {ConstTensorView(weight), gradient, ConstTensorView(exp_avg), ConstTensorView(exp_avg_sq)}) {
    check_device(view);
    PC_CHECK(view.num_elems() == weight.num_elems(), view.shape, " beside a weight of ", weight.shape);
    PC_CHECK(view.dtype == weight.dtype, dtype_name(view.dtype), " beside a weight of ", dtype_name(weight.dtype));
  }
  if (working_copy.num_elems() == 0) return;
  check_device(working_copy);
  PC_CHECK(working_copy.num_elems() == weight.num_elems(), "a working copy of ", working_copy.shape,
           " beside a weight of ", weight.shape);
  PC_CHECK(weight.dtype == DType::f32 && (working_copy.dtype == DType::bf16 || working_copy.dtype == DType::f16),
           "a working copy in ", dtype_name(working_copy.dtype), " of a weight in ", dtype_name(weight.dtype));
}

// The norm where an update reads it, else null.
const double* checked_norm(Device device, const ConstTensorView& squared_norm, const AdamWStep& settings) {
  PC_CHECK(settings.step >= 1, "step ", settings.step);
  if (settings.max_norm <= 0 && !settings.skip_nonfinite) return nullptr;
  PC_CHECK(squared_norm.device == device && squared_norm.num_elems() == 1, "squared_norm ", squared_norm.shape, " on ",
           device_name(squared_norm.device));
  return squared_norm.as<double>();
}

void account(const TensorView& weight, const TensorView& working_copy, Stream& stream,
             std::source_location place = std::source_location::current()) {
  stream.account(15.0 * static_cast<double>(weight.num_elems()),
                 7.0 * static_cast<double>(weight.num_bytes()) + static_cast<double>(working_copy.num_bytes()), place);
}

template <typename T, typename Copy>
void enqueue_update(const TensorView& weight, Copy* working_copy, const ConstTensorView& gradient,
                    const TensorView& exp_avg, const TensorView& exp_avg_sq, const double* norm,
                    const AdamWStep& settings, Stream& stream) {
  stream.enqueue([w = weight.as<T>(), working_copy, g = gradient.as<T>(), m = exp_avg.as<T>(), v = exp_avg_sq.as<T>(),
                  norm, settings,
                  num_elems = weight.num_elems()] { cpu::adamw(w, working_copy, g, m, v, norm, settings, num_elems); });
}

// The CPU twin, as a host task.
void run_on_host(const TensorView& weight, const TensorView& working_copy, const ConstTensorView& gradient,
                 const TensorView& exp_avg, const TensorView& exp_avg_sq, const double* norm, const AdamWStep& settings,
                 Stream& stream) {
  constexpr void* no_copy = nullptr;
  if (weight.dtype == DType::f64) {
    enqueue_update<double>(weight, no_copy, gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  } else if (working_copy.num_elems() == 0) {
    enqueue_update<float>(weight, no_copy, gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  } else if (working_copy.dtype == DType::bf16) {
    enqueue_update<float>(weight, working_copy.as<BFloat16>(), gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  } else {
    enqueue_update<float>(weight, working_copy.as<Float16>(), gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  }
}

}  // namespace

void adamw(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
           TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream) {
  check_arrays(stream.device(), weight, working_copy, gradient, exp_avg, exp_avg_sq);
  const double* norm = checked_norm(stream.device(), squared_norm, settings);
  if (weight.num_elems() == 0) return;
  account(weight, working_copy, stream, std::source_location::current());
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::adamw(weight, working_copy, gradient, exp_avg, exp_avg_sq, squared_norm, settings, stream);
    }
  }
  run_on_host(weight, working_copy, gradient, exp_avg, exp_avg_sq, norm, settings, stream);
}

void adamw_on_host(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
                   TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream) {
  const bool is_dry = stream.device().kind == DeviceKind::dry;
  const Device host = is_dry ? stream.device() : Device{};
  check_arrays(host, weight, working_copy, gradient, exp_avg, exp_avg_sq);
  const double* norm = checked_norm(host, squared_norm, settings);
  if (weight.num_elems() == 0) return;
  account(weight, working_copy, stream, std::source_location::current());
  run_on_host(weight, working_copy, gradient, exp_avg, exp_avg_sq, norm, settings, stream);
}

}  // namespace potato
