// Flat operations on the device against their CPU twins; results that involve one rounding must be equal.
#include "potato/kernels/elementwise.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

constexpr double garbage = 12345;

// Elements [1, n) of a view: addresses aligned to the element alone.
TensorView shifted(const TensorView& view) { return view.rows(1, view.dim(0) - 1); }

}  // namespace

TEST_CASE("fill, copy and add_to on the device equal the CPU", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  for (const DType dtype : gpu_dtypes) {
    for (const std::int64_t n : {2, 7, 33, 4099, 300001}) {
      for (const bool shift : {false, true}) {
        const auto part = [&](const TensorView& view) { return shift ? shifted(view) : view; };
        Twin x(on, dtype, {n}, 1), sum(on, dtype, {n}, 2), filled(on, dtype, {n}, 3), zeroed(on, dtype, {n}, 4),
            copied(on, dtype, {n}, 5);
        add_to(part(x.host()), part(sum.host()), host);
        add_to(part(x.device()), part(sum.device()), on.stream);
        fill(part(filled.host()), 1.7, host);
        fill(part(filled.device()), 1.7, on.stream);
        fill(part(zeroed.host()), 0, host);
        fill(part(zeroed.device()), 0, on.stream);
        copy(part(x.host()), part(copied.host()), host);
        copy(part(x.device()), part(copied.device()), on.stream);
        CAPTURE(dtype_name(dtype), n, shift);
        CHECK(sum.device_values() == sum.host_values());
        CHECK(filled.device_values() == filled.host_values());
        CHECK(zeroed.device_values() == zeroed.host_values());
        CHECK(copied.device_values() == copied.host_values());
      }
    }
  }
}

TEST_CASE("fill of fp64 and copy of integers on the device", "[gpu][kernel]") {
  Gpu on;
  Twin wide(on, DType::f64, {1001}, 1);
  fill(wide.device(), 1 / 3.0, on.stream);
  CHECK(wide.device_values() == std::vector<double>(1001, 1 / 3.0));
  IntTwin source(on, {5, 6, 7, 8}), destination(on, {0, 0, 0, 0});
  copy(source.device(), destination.device(), on.stream);
  on.stream.synchronize();
  std::int32_t back[4] = {};
  PC_CUDA(cudaMemcpy(back, destination.device().data, sizeof(back), cudaMemcpyDeviceToHost));
  CHECK(std::vector<std::int32_t>(back, back + 4) == std::vector<std::int32_t>{5, 6, 7, 8});
}

TEST_CASE("convert on the device rounds as the CPU does, ties and overflow included", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  std::vector<double> values = random_tensor<double>({70001}, 1, 3).data;
  const std::vector<double> special = {0,           -0.0,  1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11,
                                       1 + 0x3p-11, 65504, 0x1p-24,    0x1p-25};
  std::copy(special.begin(), special.end(), values.begin());
  const auto n = static_cast<std::int64_t>(values.size());
  const DType all[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
  for (const DType from : all) {
    for (const DType to : all) {
      const auto is_half_dtype = [](DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; };
      if ((from == DType::f64 && is_half_dtype(to)) || (to == DType::f64 && is_half_dtype(from))) continue;
      Twin x(on, from, {n}, values), y(on, to, {n}, std::vector<double>(values.size(), garbage)),
          z(on, to, {n}, std::vector<double>(values.size(), garbage));
      convert(x.host(), y.host(), host);
      convert(x.device(), y.device(), on.stream);
      convert(shifted(x.host()), shifted(z.host()), host);
      convert(shifted(x.device()), shifted(z.device()), on.stream);
      CAPTURE(dtype_name(from), dtype_name(to));
      CHECK(y.device_values() == y.host_values());
      CHECK(z.device_values() == z.host_values());
    }
  }
}

TEST_CASE("add_squared_norm on the device agrees with the CPU, is exact on integers and repeats bitwise",
          "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  for (const DType dtype : gpu_dtypes) {
    for (const std::int64_t n : {2, 33, 4096, 100003, 5000003}) {
      std::vector<double> integers(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < integers.size(); ++i) integers[i] = static_cast<double>(i % 7) - 3;
      Twin x(on, dtype, {n}, integers);
      Twin whole(on, DType::f64, {1}, std::vector<double>{10}), part(on, DType::f64, {1}, std::vector<double>{10});
      add_squared_norm(x.host(), 2, whole.host(), host);
      add_squared_norm(x.device(), 2, whole.device(), on.stream);
      add_squared_norm(shifted(x.host()), 2, part.host(), host);
      add_squared_norm(shifted(x.device()), 2, part.device(), on.stream);
      CAPTURE(dtype_name(dtype), n);
      CHECK(whole.device_values() == whole.host_values());
      CHECK(part.device_values() == part.host_values());
    }
    Twin x(on, dtype, {1000003}, 5, 1e-2);
    Twin one(on, DType::f64, {1}, std::vector<double>{0}), two(on, DType::f64, {1}, std::vector<double>{0});
    add_squared_norm(x.host(), 1, one.host(), host);
    add_squared_norm(x.device(), 1, one.device(), on.stream);
    add_squared_norm(x.device(), 1, two.device(), on.stream);
    CHECK(one.distance() < 1e-13);
    CHECK(one.device_values() == two.device_values());
  }
}
