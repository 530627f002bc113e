#include "potato/kernels/adamw.hpp"

#include "back_end.hpp"
#include "cpu/adamw.hpp"
#include "cuda/adamw.hpp"

namespace potato {

namespace {

// Shapes, dtypes and devices of everything but the norm.
void check_arrays(const Stream& stream, const TensorView& weight, const TensorView& working_copy, bool has_copy,
                  const ConstTensorView& gradient, const TensorView& exp_avg, const TensorView& exp_avg_sq) {
  for (const ConstTensorView& view :
       {ConstTensorView(weight), gradient, ConstTensorView(exp_avg), ConstTensorView(exp_avg_sq)}) {
    check_device(stream, view);
    PC_CHECK(view.num_elems() == weight.num_elems(), view.shape, " beside a weight of ", weight.shape);
    PC_CHECK(view.dtype == weight.dtype, dtype_name(view.dtype), " beside a weight of ", dtype_name(weight.dtype));
  }
  if (!has_copy) return;
  check_device(stream, working_copy);
  PC_CHECK(working_copy.num_elems() == weight.num_elems(), "a working copy of ", working_copy.shape,
           " beside a weight of ", weight.shape);
  PC_CHECK(weight.dtype == DType::f32 && (working_copy.dtype == DType::bf16 || working_copy.dtype == DType::f16),
           "a working copy in ", dtype_name(working_copy.dtype), " of a weight in ", dtype_name(weight.dtype));
}

template <typename T, typename Copy>
void run_adamw(const TensorView& weight, Copy* working_copy, const ConstTensorView& gradient, const TensorView& exp_avg,
               const TensorView& exp_avg_sq, const double* norm, const AdamWStep& settings, Stream& stream) {
  stream.enqueue([w = weight.as<T>(), working_copy, g = gradient.as<T>(), m = exp_avg.as<T>(), v = exp_avg_sq.as<T>(),
                  norm, settings,
                  num_elems = weight.num_elems()] { cpu::adamw(w, working_copy, g, m, v, norm, settings, num_elems); });
}

}  // namespace

void adamw(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
           TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream) {
  const std::int64_t num_elems = weight.num_elems();
  const bool has_copy = working_copy.data != nullptr && working_copy.num_elems() > 0;
  check_arrays(stream, weight, working_copy, has_copy, gradient, exp_avg, exp_avg_sq);
  PC_CHECK(settings.step >= 1, "step ", settings.step);
  const double* norm = nullptr;
  if (settings.max_norm > 0) {
    check_device(stream, squared_norm);
    PC_CHECK(squared_norm.num_elems() == 1, "squared_norm ", squared_norm.shape);
    norm = squared_norm.as<double>();
  }
  if (num_elems == 0) return;
  stream.account(
      15.0 * static_cast<double>(num_elems),
      7.0 * static_cast<double>(weight.num_bytes()) + (has_copy ? static_cast<double>(working_copy.num_bytes()) : 0.0));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) {
      return cuda::adamw(weight, working_copy, gradient, exp_avg, exp_avg_sq, squared_norm, settings, stream);
    }
  }
  if (weight.dtype == DType::f64) {
    run_adamw<double>(weight, static_cast<void*>(nullptr), gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  } else if (!has_copy) {
    run_adamw<float>(weight, static_cast<void*>(nullptr), gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  } else if (working_copy.dtype == DType::bf16) {
    run_adamw<float>(weight, working_copy.as<BFloat16>(), gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  } else {
    run_adamw<float>(weight, working_copy.as<Float16>(), gradient, exp_avg, exp_avg_sq, norm, settings, stream);
  }
}

void adamw_on_host(TensorView weight, TensorView working_copy, ConstTensorView gradient, TensorView exp_avg,
           TensorView exp_avg_sq, ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream) {
  adamw(weight, working_copy, gradient, exp_avg, exp_avg_sq, squared_norm, settings, stream);
}

}  // namespace potato
