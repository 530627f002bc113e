#include "potato/kernels/elementwise.hpp"

#include "back_end.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/widen.hpp"
#include "cuda/elementwise.hpp"

namespace potato {

void fill(TensorView x, double value, Stream& stream) {
  check_device(stream, x);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  dispatch_float(x.dtype, [&](auto zero) {  // also where the device is not the host: it checks the dtype
    using S = decltype(zero);
    stream.account(0, static_cast<double>(x.num_bytes()));
    if constexpr (with_cuda) {
      if (on_cuda(stream)) return cuda::fill(x, value, stream);
    }
    stream.enqueue(
        [p = x.as<S>(), value = S(static_cast<Compute<S>>(value)), num_elems] { cpu::fill(p, value, num_elems); });
  });
}

void zero(TensorView x, Stream& stream) {
  const bool is_beside = x.device.kind == DeviceKind::cpu && stream.device().kind == DeviceKind::cuda;
  if (!is_beside) return fill(x, 0, stream);
  stream.account(0, static_cast<double>(x.num_bytes()));
  dispatch_float(x.dtype, [&](auto none) {
    using S = decltype(none);
    stream.enqueue([p = x.as<S>(), num_elems = x.num_elems()] { cpu::fill(p, S{}, num_elems); });
  });
}

void copy(ConstTensorView source, TensorView destination, Stream& stream) {
  check_device(stream, source);
  check_device(stream, destination);
  PC_CHECK(source.dtype == destination.dtype, dtype_name(source.dtype), " to ", dtype_name(destination.dtype));
  PC_CHECK(source.num_elems() == destination.num_elems(), source.shape, " to ", destination.shape);
  const std::int64_t num_bytes = source.num_bytes();
  if (num_bytes == 0) return;
  stream.account(0, 2.0 * static_cast<double>(num_bytes));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::copy(source, destination, stream);
  }
  stream.enqueue([from = source.data, to = destination.data, num_bytes] { cpu::copy(from, to, num_bytes); });
}

void convert(ConstTensorView source, TensorView destination, Stream& stream) {
  if (source.dtype == destination.dtype) return copy(source, destination, stream);
  check_device(stream, source);
  check_device(stream, destination);
  PC_CHECK(source.num_elems() == destination.num_elems(), source.shape, " to ", destination.shape);
  const std::int64_t num_elems = source.num_elems();
  dispatch_float(source.dtype, [&](auto from_zero) {
    dispatch_float(destination.dtype, [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      constexpr bool is_pair = !std::is_same_v<From, To> && !(std::is_same_v<From, double> && is_half<To>)&&!(
                                                                is_half<From> && std::is_same_v<To, double>);
      if constexpr (is_pair) {
        if (num_elems == 0) return;
        stream.account(0, static_cast<double>(source.num_bytes() + destination.num_bytes()));
        if constexpr (with_cuda) {
          if (on_cuda(stream)) return cuda::convert(source, destination, stream);
        }
        stream.enqueue(
            [from = source.as<From>(), to = destination.as<To>(), num_elems] { cpu::convert(from, to, num_elems); });
      } else {
        throw Error(cat("no conversion from ", dtype_name(source.dtype), " to ", dtype_name(destination.dtype)));
      }
    });
  });
}

void add_to(ConstTensorView x, TensorView y, Stream& stream) {
  check_device(stream, x);
  check_device(stream, y);
  PC_CHECK(x.num_elems() == y.num_elems(), x.shape, " to ", y.shape);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  stream.account(static_cast<double>(num_elems), 3.0 * static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::add_to(x, y, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue([p = x.as<S>(), q = y.as<S>(), num_elems] {
      cpu::add_to<Compute<S>>(cpu::In(p, num_elems), cpu::InOut(q, num_elems), num_elems);
    });
  });
}

void add_squared_norm(ConstTensorView x, double weight, TensorView result, Stream& stream) {
  check_device(stream, x);
  check_device(stream, result);
  PC_CHECK(result.num_elems() == 1, "result ", result.shape);
  const std::int64_t num_elems = x.num_elems();
  if (num_elems == 0) return;
  stream.account(2.0 * static_cast<double>(num_elems), static_cast<double>(x.num_bytes()));
  if constexpr (with_cuda) {
    if (on_cuda(stream)) return cuda::add_squared_norm(x, weight, result, stream);
  }
  dispatch_float(x.dtype, [&](auto zero) {
    using S = decltype(zero);
    stream.enqueue([p = x.as<S>(), weight, sum = result.as<double>(), num_elems] {
      cpu::add_squared_norm<Compute<S>>(cpu::In(p, num_elems), weight, sum, num_elems);
    });
  });
}

}  // namespace potato
