// Layer normalisation on the device against its CPU twin.
#include "potato/kernels/dropout.hpp"
#include "potato/kernels/layernorm.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

constexpr double eps = 1e-5;
constexpr double garbage = 12345;

struct Size {
  std::int64_t m, c;
};
// Rows in registers for each number of packs a lane, rows that take single elements, rows too long for registers.
constexpr Size sizes[] = {{1, 8},     {5, 33},    {67, 7},   {40, 64},    {301, 768}, {33, 1024},
                          {65, 1600}, {19, 1280}, {9, 2048}, {300, 1100}, {4, 5000},  {3, 4096}};

std::vector<double> poison(std::int64_t n) { return std::vector<double>(static_cast<std::size_t>(n), garbage); }

struct Norm {
  Twin x, weight, bias, y, mean, rstd;
  Norm(Gpu& on, DType dtype, std::int64_t m, std::int64_t c)
      : x(on, dtype, {m, c}, 1, 2),
        weight(on, dtype, {c}, 2),
        bias(on, dtype, {c}, 3),
        y(on, dtype, {m, c}, poison(m * c)),
        mean(on, DType::f32, {m}, poison(m)),
        rstd(on, DType::f32, {m}, poison(m)) {}
  void forward(Gpu& on, Stream& host) {
    layernorm_forward(x.host(), weight.host(), bias.host(), eps, y.host(), mean.host(), rstd.host(), host);
    layernorm_forward(x.device(), weight.device(), bias.device(), eps, y.device(), mean.device(), rstd.device(),
                      on.stream);
  }
};

}  // namespace

TEST_CASE("layernorm on the device agrees with the CPU, and apply with forward bitwise", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  for (const DType dtype : gpu_dtypes) {
    for (const auto [m, c] : sizes) {
      Norm norm(on, dtype, m, c);
      Twin again(on, dtype, {m, c}, poison(m * c));
      norm.forward(on, host);
      layernorm_apply(norm.x.device(), norm.weight.device(), norm.bias.device(), norm.mean.device(), norm.rstd.device(),
                      again.device(), on.stream);
      CAPTURE(dtype_name(dtype), m, c);
      CHECK(norm.y.distance() < tolerance(dtype));
      CHECK(norm.mean.distance() < tolerance(DType::f32));
      CHECK(norm.rstd.distance() < tolerance(DType::f32));
      CHECK(again.device_values() == norm.y.device_values());
    }
  }
}

TEST_CASE("layernorm's gradients on the device agree with the CPU, in place too, and repeat bitwise", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  for (const DType dtype : gpu_dtypes) {
    for (const auto [m, c] : sizes) {
      Norm norm(on, dtype, m, c);
      norm.forward(on, host);
      Twin dy(on, dtype, {m, c}, 4), residual(on, dtype, {m, c}, 5), dx(on, dtype, {m, c}, poison(m * c)),
          dw(on, DType::f32, {c}, 6), db(on, DType::f32, {c}, 7), dw_again(on, DType::f32, {c}, 6),
          db_again(on, DType::f32, {c}, 7);
      layernorm_backward(dy.host(), norm.x.host(), norm.weight.host(), norm.mean.host(), norm.rstd.host(),
                         residual.host(), dx.host(), dw.host(), db.host(), host);
      layernorm_backward(dy.device(), norm.x.device(), norm.weight.device(), norm.mean.device(), norm.rstd.device(),
                         residual.device(), dx.device(), dw.device(), db.device(), on.stream);
      layernorm_backward(dy.device(), norm.x.device(), norm.weight.device(), norm.mean.device(), norm.rstd.device(),
                         residual.device(), residual.device(), dw_again.device(), db_again.device(), on.stream);
      CAPTURE(dtype_name(dtype), m, c);
      CHECK(dx.distance() < tolerance(dtype));
      CHECK(dw.distance() < tolerance(DType::f32));
      CHECK(db.distance() < tolerance(DType::f32));
      CHECK(dw.device_values() == dw_again.device_values());
      CHECK(db.device_values() == db_again.device_values());
      CHECK(residual.device_values() == dx.device_values());
    }
  }
}

TEST_CASE("layernorm's bias gradient on the device counts each row once over many blocks", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    for (const auto [m, c] : {Size{9001, 96}, Size{4099, 1600}, Size{5003, 5}}) {
      std::vector<double> values(static_cast<std::size_t>(m * c)), due(static_cast<std::size_t>(c), 1);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<double>(i * i % 5);
        due[i % due.size()] += values[i];
      }
      Twin dy(on, dtype, {m, c}, values), x(on, dtype, {m, c}, 1), weight(on, dtype, {c}, 2),
          mean(on, DType::f32, {m}, 3), rstd(on, DType::f32, {m}, 4), dx(on, dtype, {m, c}, poison(m * c)),
          dw(on, DType::f32, {c}, 5), db(on, DType::f32, {c}, std::vector<double>(due.size(), 1));
      layernorm_backward(dy.device(), x.device(), weight.device(), mean.device(), rstd.device(), x.device(),
                         dx.device(), dw.device(), db.device(), on.stream);
      CAPTURE(dtype_name(dtype), m, c);
      CHECK(db.device_values() == due);
    }
  }
}

TEST_CASE("the end of a branch with the norm behind it is bitwise the two operations on the device", "[gpu][kernel]") {
  Gpu on;
  Stream host = twin_stream();
  const TokenRows rows{7, 24, 5};
  for (const DType dtype : gpu_dtypes) {
    for (const double p : {0.0, 0.1}) {
      const Dropout dropout{p, philox_key(11, "layer.3.mlp")};
      for (const auto [m, c] : sizes) {
        Norm fused(on, dtype, m, c), apart(on, dtype, m, c);
        Twin branch(on, dtype, {m, c}, 8), bias(on, dtype, {c}, 9), residual(on, dtype, {m, c}, 10),
            sum(on, dtype, {m, c}, poison(m * c));
        bias_dropout_add_layernorm_forward(branch.host(), bias.host(), residual.host(), sum.host(), dropout, rows,
                                           fused.weight.host(), fused.bias.host(), eps, fused.y.host(),
                                           fused.mean.host(), fused.rstd.host(), host);
        bias_dropout_add_layernorm_forward(branch.device(), bias.device(), residual.device(), sum.device(), dropout,
                                           rows, fused.weight.device(), fused.bias.device(), eps, fused.y.device(),
                                           fused.mean.device(), fused.rstd.device(), on.stream);
        CAPTURE(dtype_name(dtype), p, m, c);
        CHECK(sum.distance() < tolerance(dtype));
        CHECK(fused.y.distance() < 2 * tolerance(dtype));  // sums that rounded apart differ by an ulp of theirs

        bias_dropout_add_forward(branch.device(), bias.device(), residual.device(), apart.x.device(), dropout, rows,
                                 on.stream);
        layernorm_forward(apart.x.device(), apart.weight.device(), apart.bias.device(), eps, apart.y.device(),
                          apart.mean.device(), apart.rstd.device(), on.stream);
        CHECK(sum.device_values() == apart.x.device_values());
        CHECK(fused.y.device_values() == apart.y.device_values());
        CHECK(fused.mean.device_values() == apart.mean.device_values());
        CHECK(fused.rstd.device_values() == apart.rstd.device_values());

        bias_dropout_add_layernorm_forward(branch.device(), bias.device(), residual.device(), residual.device(),
                                           dropout, rows, fused.weight.device(), fused.bias.device(), eps,
                                           fused.y.device(), fused.mean.device(), fused.rstd.device(), on.stream);
        CHECK(residual.device_values() == sum.device_values());
        CHECK(fused.y.device_values() == apart.y.device_values());
      }
    }
  }
}
