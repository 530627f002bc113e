#include "potato/kernels/elementwise.hpp"

#include "cpu/elementwise.hpp"
#include "run_on.hpp"

namespace potato {

void fill(TensorView x, double value, Stream& stream) {
  check_device(stream, x);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 0, static_cast<double>(x.num_bytes()),
           [p = x.as<T>(), value, num_elems] { cpu::fill(p, static_cast<T>(value), num_elems); });
  });
}

void copy(ConstTensorView source, TensorView destination, Stream& stream) {
  check_device(stream, source);
  check_device(stream, destination);
  PC_CHECK(source.dtype == destination.dtype, dtype_name(source.dtype), " to ", dtype_name(destination.dtype));
  PC_CHECK(source.num_elems() == destination.num_elems(), source.shape, " to ", destination.shape);
  const std::int64_t num_bytes = source.num_bytes();
  if (num_bytes == 0) return;
  run_on(stream, 0, 2.0 * static_cast<double>(num_bytes),
         [from = source.data, to = destination.data, num_bytes] { cpu::copy(from, to, num_bytes); });
}

void add_to(ConstTensorView x, TensorView y, Stream& stream) {
  check_device(stream, x);
  check_device(stream, y);
  PC_CHECK(x.num_elems() == y.num_elems(), x.shape, " to ", y.shape);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, static_cast<double>(num_elems), 3.0 * static_cast<double>(x.num_bytes()),
           [p = x.as<T>(), q = y.as<T>(), num_elems] { cpu::add_to(p, q, num_elems); });
  });
}

void add_squared_norm(ConstTensorView x, double weight, TensorView result, Stream& stream) {
  check_device(stream, x);
  check_device(stream, result);
  PC_CHECK(result.num_elems() == 1, "result ", result.shape);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  dispatch_real(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_on(stream, 2.0 * static_cast<double>(num_elems), static_cast<double>(x.num_bytes()),
           [p = x.as<T>(), weight, sum = result.as<double>(), num_elems] {
             cpu::add_squared_norm(p, weight, sum, num_elems);
           });
  });
}

}  // namespace potato
