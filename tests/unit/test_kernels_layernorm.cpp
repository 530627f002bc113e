// M rows, C channels. References are written out in double.
#include <algorithm>
#include <cmath>

#include "potato/kernels/layernorm.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

constexpr double eps = 1e-5;

template <typename T>
struct Norm {
  std::int64_t m, c;
  HostTensor<T> x, weight, bias, y, mean, rstd, dy, residual, dx, dw, db;

  Norm(std::int64_t rows, std::int64_t channels)
      : m(rows),
        c(channels),
        x(random_tensor<T>({m, c}, 1, 2)),
        weight(random_tensor<T>({c}, 2)),
        bias(random_tensor<T>({c}, 3)),
        y({m, c}),
        mean({m}),
        rstd({m}),
        dy(random_tensor<T>({m, c}, 4)),
        residual(random_tensor<T>({m, c}, 5)),
        dx({m, c}),
        dw(random_tensor<T>({c}, 6)),
        db(random_tensor<T>({c}, 7)) {}

  void forward(int threads = 1) {
    Stream stream = cpu_stream(threads);
    layernorm_forward(x.view(), weight.view(), bias.view(), eps, y.view(), mean.view(), rstd.view(), stream);
    stream.synchronize();
  }
  void backward(int threads = 1) {
    Stream stream = cpu_stream(threads);
    layernorm_backward(dy.view(), x.view(), weight.view(), mean.view(), rstd.view(), residual.view(), dx.view(),
                       dw.view(), db.view(), stream);
    stream.synchronize();
  }
};

template <typename T>
void check_against_naive(std::int64_t m, std::int64_t c, double tolerance) {
  Norm<T> norm(m, c);
  const auto old_dw = norm.dw, old_db = norm.db;
  norm.forward();
  norm.backward();
  std::vector<double> dw(old_dw.data.begin(), old_dw.data.end()), db(old_db.data.begin(), old_db.data.end());
  double worst = 0, largest_rstd = 1;
  const auto compare = [&](double seen, double due) {
    worst = std::max(worst, std::abs(seen - due) / std::max(1.0, std::abs(due)));
  };
  for (std::int64_t r = 0; r < m; ++r) {
    double mean = 0, variance = 0, mean_g = 0, mean_gx = 0;
    for (std::int64_t i = 0; i < c; ++i) mean += norm.x[r * c + i] / static_cast<double>(c);
    for (std::int64_t i = 0; i < c; ++i) variance += std::pow(norm.x[r * c + i] - mean, 2) / static_cast<double>(c);
    const double rstd = 1 / std::sqrt(variance + eps);
    largest_rstd = std::max(largest_rstd, rstd);
    compare(norm.mean[r], mean);
    compare(norm.rstd[r], rstd);
    const auto xhat = [&](std::int64_t i) { return (norm.x[r * c + i] - mean) * rstd; };
    for (std::int64_t i = 0; i < c; ++i) {
      compare(norm.y[r * c + i], xhat(i) * norm.weight[i] + norm.bias[i]);
      const double g = static_cast<double>(norm.dy[r * c + i]) * norm.weight[i];
      mean_g += g / static_cast<double>(c);
      mean_gx += g * xhat(i) / static_cast<double>(c);
      dw[static_cast<std::size_t>(i)] += norm.dy[r * c + i] * xhat(i);
      db[static_cast<std::size_t>(i)] += norm.dy[r * c + i];
    }
    for (std::int64_t i = 0; i < c; ++i) {
      const double g = static_cast<double>(norm.dy[r * c + i]) * norm.weight[i];
      // One channel: the gradient vanishes as the difference of terms that grow with rstd.
      if (c > 1) compare(norm.dx[r * c + i], norm.residual[r * c + i] + rstd * (g - mean_g - xhat(i) * mean_gx));
    }
  }
  for (std::int64_t i = 0; i < c; ++i) {
    compare(norm.dw[i], dw[static_cast<std::size_t>(i)]);
    compare(norm.db[i], db[static_cast<std::size_t>(i)]);
  }
  CAPTURE(m, c);
  // Rounded means are magnified by rstd, twice in dx.
  CHECK(worst < tolerance * largest_rstd * largest_rstd);
}

}  // namespace

TEST_CASE("layernorm agrees with the formula at odd sizes", "[kernels][layernorm]") {
  for (const std::int64_t c : {1, 3, 7, 33, 64, 257, 1100}) {
    for (const std::int64_t m : {1, 5, 67}) {
      check_against_naive<double>(m, c, 1e-14);
      check_against_naive<float>(m, c, 5e-6);
    }
  }
}

TEST_CASE("layernorm's gradients agree with finite differences", "[kernels][layernorm]") {
  const std::int64_t m = 3, c = 33;
  Norm<double> norm(m, c);
  norm.forward();
  norm.dw.data.assign(norm.dw.data.size(), 0);
  norm.db.data.assign(norm.db.data.size(), 0);
  norm.residual.data.assign(norm.residual.data.size(), 0);
  norm.backward();
  const Norm<double> got = norm;
  const auto loss = [&] {
    norm.forward();
    double sum = 0;
    for (std::int64_t i = 0; i < m * c; ++i) sum += norm.y[i] * norm.dy[i];
    return sum;
  };
  const auto check = [&](HostTensor<double>& parameter, const HostTensor<double>& gradient) {
    for (std::int64_t i = 0; i < parameter.shape.num_elems(); i += 5) {
      constexpr double step = 1e-5;
      const double old = parameter[i];
      parameter[i] = old + step;
      const double above = loss();
      parameter[i] = old - step;
      const double below = loss();
      parameter[i] = old;
      CHECK(gradient[i] == Approx((above - below) / (2 * step)).epsilon(1e-6).margin(1e-8));
    }
  };
  check(norm.x, got.dx);
  check(norm.weight, got.dw);
  check(norm.bias, got.db);
}

TEMPLATE_TEST_CASE("layernorm is bitwise the same for 1 and 2 threads, and any number of rows", "[kernels][layernorm]",
                   float, double) {
  const std::int64_t m = 61;
  for (const std::int64_t c : {33, 257, 768}) {
    Norm<TestType> one(m, c), two(m, c);
    one.forward(1);
    one.backward(1);
    two.forward(2);
    two.backward(2);
    CHECK(one.y.data == two.y.data);
    CHECK(one.rstd.data == two.rstd.data);
    CHECK(one.dx.data == two.dx.data);
    CHECK(one.dw.data == two.dw.data);
    CHECK(one.db.data == two.db.data);

    HostTensor<TestType> again({m, c});
    Stream stream = cpu_stream(2);
    layernorm_apply(one.x.view(), one.weight.view(), one.bias.view(), one.mean.view(), one.rstd.view(), again.view(),
                    stream);
    stream.synchronize();
    CHECK(again.data == one.y.data);

    // The last rows alone.
    const std::int64_t tail = 7;
    layernorm_forward(one.x.view().rows(m - tail, tail), one.weight.view(), one.bias.view(), eps,
                      again.view().rows(m - tail, tail), two.mean.view().rows(0, tail), two.rstd.view().rows(0, tail),
                      stream);
    stream.synchronize();
    CHECK(again.data == one.y.data);
  }
}

TEST_CASE("layernorm's input gradient may overwrite the residual gradient", "[kernels][layernorm]") {
  Norm<float> apart(19, 100), in_place(19, 100);
  apart.forward();
  in_place.forward();
  apart.backward();
  Stream stream = cpu_stream();
  layernorm_backward(in_place.dy.view(), in_place.x.view(), in_place.weight.view(), in_place.mean.view(),
                     in_place.rstd.view(), in_place.residual.view(), in_place.residual.view(), in_place.dw.view(),
                     in_place.db.view(), stream);
  stream.synchronize();
  CHECK(in_place.residual.data == apart.dx.data);
}

TEST_CASE("layernorm refuses shapes that do not fit, and takes no rows", "[kernels][layernorm]") {
  Norm<float> norm(4, 8), none(0, 8);
  Stream stream = cpu_stream();
  HostTensor<float> short_weight({7});
  CHECK_THROWS_AS(layernorm_forward(norm.x.view(), short_weight.view(), norm.bias.view(), eps, norm.y.view(),
                                    norm.mean.view(), norm.rstd.view(), stream),
                  Error);
  none.forward();
  none.backward();
}
