#include "potato/kernels/adamw.hpp"

#include "cpu/adamw.hpp"
#include "run_on.hpp"

namespace potato {

void adamw(TensorView weight, ConstTensorView gradient, TensorView exp_avg, TensorView exp_avg_sq,
           ConstTensorView squared_norm, const AdamWStep& settings, Stream& stream) {
  const std::int64_t num_elems = weight.num_elems();
  for (const ConstTensorView& view :
       {ConstTensorView(weight), gradient, ConstTensorView(exp_avg), ConstTensorView(exp_avg_sq)}) {
    check_device(stream, view);
    PC_CHECK(view.num_elems() == num_elems, view.shape, " beside a weight of ", weight.shape);
  }
  PC_CHECK(settings.step >= 1, "step ", settings.step);
  const double* norm = nullptr;
  if (settings.max_norm > 0) {
    check_device(stream, squared_norm);
    PC_CHECK(squared_norm.num_elems() == 1, "squared_norm ", squared_norm.shape);
    norm = squared_norm.as<double>();
  }
  if (num_elems == 0) return;
  dispatch_real(weight.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 15.0 * static_cast<double>(num_elems), 7.0 * static_cast<double>(weight.num_bytes()),
           [w = weight.as<T>(), g = gradient.as<T>(), m = exp_avg.as<T>(), v = exp_avg_sq.as<T>(), norm, settings,
            num_elems] { cpu::adamw(w, g, m, v, norm, settings, num_elems); });
  });
}

}  // namespace potato
