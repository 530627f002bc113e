// The end of a residual branch on the device against the CPU twin; masks must be the same bit for bit.
#include "potato/kernels/dropout.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

constexpr double garbage = 12345;

Dropout dropout_of(double p) { return {p, philox_key(11, "layer.3.mlp")}; }

struct Size {
  std::int64_t m, c;
};

}  // namespace

TEST_CASE("dropout masks on the device are the CPU's", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  // Small sequences cross several samples in one step of a thread; the last one's token numbers need 64 bits.
  const TokenRows rows_of[] = {{7, 24, 5}, {(1ULL << 40) + 3, 1, 0}, {9, 1024, 1000}, {1, 1000, (1LL << 33) + 7}};
  for (const DType dtype : gpu_dtypes) {
    for (const auto [m, c] : {Size{1, 1}, Size{70, 7}, Size{67, 64}, Size{300, 135}, Size{513, 768}}) {
      for (const TokenRows& rows : rows_of) {
        const std::vector<double> ones(static_cast<std::size_t>(m * c), 1);
        Twin dy(on, dtype, {m, c}, ones), dx(on, dtype, {m, c}, std::vector<double>(ones.size(), garbage)),
            db(on, DType::f32, {c}, 1);
        bias_dropout_add_backward(dy.host(), dx.host(), db.host(), dropout_of(0.5), rows, host);
        bias_dropout_add_backward(dy.device(), dx.device(), db.device(), dropout_of(0.5), rows, on.stream);
        CAPTURE(dtype_name(dtype), m, c, rows.sequence_length);
        CHECK(dx.device_values() == dx.host_values());  // 0 or 2
        CHECK(db.distance() < tolerance(DType::f32));
      }
    }
  }
}

TEST_CASE("the end of a branch on the device agrees with the CPU, also in place", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  const TokenRows rows{7, 24, 5};
  for (const DType dtype : gpu_dtypes) {
    for (const double p : {0.0, 0.1}) {
      for (const auto [m, c] : {Size{1, 1}, Size{70, 7}, Size{300, 135}, Size{513, 768}, Size{64, 1600}}) {
        Twin x(on, dtype, {m, c}, 1), bias(on, dtype, {c}, 2), residual(on, dtype, {m, c}, 3),
            y(on, dtype, {m, c}, std::vector<double>(static_cast<std::size_t>(m * c), garbage)),
            dy(on, dtype, {m, c}, 4), dx(on, dtype, {m, c}, 5), db(on, DType::f32, {c}, 6),
            db_again(on, DType::f32, {c}, 6);
        bias_dropout_add_forward(x.host(), bias.host(), residual.host(), y.host(), dropout_of(p), rows, host);
        bias_dropout_add_forward(x.device(), bias.device(), residual.device(), y.device(), dropout_of(p), rows,
                                 on.stream);
        bias_dropout_add_backward(dy.host(), dx.host(), db.host(), dropout_of(p), rows, host);
        bias_dropout_add_backward(dy.device(), dx.device(), db.device(), dropout_of(p), rows, on.stream);
        bias_dropout_add_backward(dy.device(), dx.device(), db_again.device(), dropout_of(p), rows, on.stream);
        CAPTURE(dtype_name(dtype), p, m, c);
        CHECK(y.distance() < tolerance(dtype));
        CHECK(dx.distance() < tolerance(dtype));
        CHECK(db.distance() < tolerance(DType::f32));
        CHECK(db.device_values() == db_again.device_values());
        const auto apart = y.device_values();
        bias_dropout_add_forward(x.device(), bias.device(), residual.device(), residual.device(), dropout_of(p), rows,
                                 on.stream);
        CHECK(residual.device_values() == apart);
      }
    }
  }
}
