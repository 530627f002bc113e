// Biases and GELU on the device against their CPU twins.
#include "potato/kernels/activation.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

constexpr double garbage = 12345;

struct Size {
  std::int64_t m, n;
};
// Shapes of GPT-2 small, packs and single columns, tiles that end early.
constexpr Size sizes[] = {{1, 1}, {1, 8}, {5, 33}, {33, 7}, {129, 768}, {67, 1100}, {300, 3072}, {1000, 136}};

}  // namespace

TEST_CASE("biases and gelu on the device agree with the CPU", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  for (const DType dtype : gpu_dtypes) {
    for (const auto [m, n] : sizes) {
      const std::vector<double> poison(static_cast<std::size_t>(m * n), garbage);
      Twin added(on, dtype, {m, n}, 1, 4), x(on, dtype, {m, n}, 1, 4), bias(on, dtype, {n}, 2),
          y(on, dtype, {m, n}, poison), again(on, dtype, {m, n}, poison), dy(on, dtype, {m, n}, 3),
          dx(on, dtype, {m, n}, poison), db(on, DType::f32, {n}, 4), plain_db(on, DType::f32, {n}, 5);
      add_bias(added.host(), bias.host(), host);
      add_bias(added.device(), bias.device(), on.stream);
      bias_backward(dy.host(), plain_db.host(), host);
      bias_backward(dy.device(), plain_db.device(), on.stream);
      bias_gelu_forward(x.host(), bias.host(), y.host(), host);
      bias_gelu_forward(x.device(), bias.device(), y.device(), on.stream);
      gelu_forward(x.device(), again.device(), on.stream);
      gelu_bias_backward(dy.host(), x.host(), dx.host(), db.host(), host);
      gelu_bias_backward(dy.device(), x.device(), dx.device(), db.device(), on.stream);
      CAPTURE(dtype_name(dtype), m, n);
      CHECK(added.device_values() == added.host_values());
      CHECK(x.device_values() == added.device_values());
      CHECK(y.distance() < tolerance(dtype));
      CHECK(again.device_values() == y.device_values());
      CHECK(dx.distance() < tolerance(dtype));
      CHECK(db.distance() < tolerance(DType::f32));
      CHECK(plain_db.distance() < tolerance(DType::f32));
    }
  }
}

TEST_CASE("gelu's gradient on the device works in place and repeats bitwise", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    const std::int64_t m = 4100, n = 832;
    Twin x(on, dtype, {m, n}, 1, 4), dy(on, dtype, {m, n}, 2), dx(on, dtype, {m, n}, 3), db(on, DType::f32, {n}, 4),
        db_again(on, DType::f32, {n}, 4);
    gelu_bias_backward(dy.device(), x.device(), dx.device(), db.device(), on.stream);
    gelu_bias_backward(dy.device(), x.device(), dy.device(), db_again.device(), on.stream);
    CHECK(dx.device_values() == dy.device_values());
    CHECK(db.device_values() == db_again.device_values());
  }
}

TEST_CASE("bias gradients on the device count each row once, also over many tiles", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    for (const auto [m, n] : {Size{16401, 96}, Size{70000, 5}, Size{3, 6400}}) {
      std::vector<double> values(static_cast<std::size_t>(m * n)), due(static_cast<std::size_t>(n), 1);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<double>(i * i % 5);  // sums of small integers are exact
        due[i % due.size()] += values[i];
      }
      Twin dy(on, dtype, {m, n}, values), db(on, DType::f32, {n}, std::vector<double>(due.size(), 1));
      bias_backward(dy.device(), db.device(), on.stream);
      CAPTURE(dtype_name(dtype), m, n);
      CHECK(db.device_values() == due);
    }
  }
}

TEST_CASE("gelu on the device is finite far out", "[gpu][kernel]") {
  Gpu on;
  Twin x(on, DType::f32, {1, 4}, std::vector<double>{-1000, -30, 0, 1000}), y(on, DType::f32, {1, 4}, 1),
      dy(on, DType::f32, {1, 4}, std::vector<double>(4, 1)), db(on, DType::f32, {4}, 1);
  gelu_forward(x.device(), y.device(), on.stream);
  gelu_bias_backward(dy.device(), x.device(), dy.device(), db.device(), on.stream);
  const auto value = y.device_values(), slope = dy.device_values();
  CHECK(std::abs(value[0]) < 1e-30);
  CHECK(std::abs(value[1]) < 1e-30);
  CHECK(value[2] == 0);
  CHECK(value[3] == 1000);
  CHECK(std::abs(slope[0]) < 1e-20);
  CHECK(slope[2] == 0.5);
  CHECK(slope[3] == 1);
}
