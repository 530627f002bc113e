// M rows, N columns. References are written out in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "potato/kernels/activation.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

double gelu_reference(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_slope_reference(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

template <typename T>
struct Results {
  HostTensor<T> x, y, dx, db;
};

// x + bias, gelu of it, and its gradients, db added to a random start.
template <typename T>
Results<T> run_gelu(std::int64_t m, std::int64_t n, int threads) {
  Results<T> r{random_tensor<T>({m, n}, 1, 6), HostTensor<T>({m, n}), random_tensor<T>({m, n}, 3),
               random_tensor<T>({n}, 4)};
  const auto bias = random_tensor<T>({n}, 2);
  Stream stream = cpu_stream(threads);
  bias_gelu_forward(r.x.view(), bias.view(), r.y.view(), stream);
  gelu_bias_backward(r.dx.view(), r.x.view(), r.dx.view(), r.db.view(), stream);  // in place
  stream.synchronize();
  return r;
}

template <typename T>
void check_against_naive(std::int64_t m, std::int64_t n, double tolerance) {
  const auto r = run_gelu<T>(m, n, 1);
  const auto x = random_tensor<T>({m, n}, 1, 6), bias = random_tensor<T>({n}, 2), dy = random_tensor<T>({m, n}, 3),
             old_db = random_tensor<T>({n}, 4);
  auto plain_sum = old_db, added = x;
  Stream stream = cpu_stream();
  add_bias(added.view(), bias.view(), stream);
  bias_backward(dy.view(), plain_sum.view(), stream);
  stream.synchronize();
  CHECK(added.data == r.x.data);
  double worst = 0;
  for (std::int64_t c = 0; c < n; ++c) {
    double sum = old_db[c], dy_sum = old_db[c];
    for (std::int64_t row = 0; row < m; ++row) {
      const std::int64_t i = row * n + c;
      CHECK(r.x[i] == x[i] + bias[c]);
      const double pre = r.x[i];
      const double gradient = dy[i] * gelu_slope_reference(pre);
      worst = std::max(worst, std::abs(r.y[i] - gelu_reference(pre)) / std::max(1.0, std::abs(pre)));
      worst = std::max(worst, std::abs(r.dx[i] - gradient));
      sum += gradient;
      dy_sum += dy[i];
    }
    worst = std::max(worst, std::abs(r.db[c] - sum) / std::max(1.0, std::abs(sum)));
    worst = std::max(worst, std::abs(plain_sum[c] - dy_sum) / std::max(1.0, std::abs(dy_sum)));
  }
  CAPTURE(m, n);
  CHECK(worst < tolerance);
}

}  // namespace

TEST_CASE("biases and gelu agree with the formulas at odd sizes", "[kernels][activation]") {
  for (const std::int64_t n : {1, 3, 7, 33, 257, 1100}) {
    for (const std::int64_t m : {1, 5, 19}) {
      check_against_naive<double>(m, n, 5e-15);
      check_against_naive<float>(m, n, 3e-6);
    }
  }
}

TEST_CASE("gelu's gradient agrees with finite differences", "[kernels][activation]") {
  const std::int64_t n = 41;
  HostTensor<double> x({1, n}), above({1, n}), below({1, n}), dy({1, n}, 1), dx({1, n}), db({n});
  constexpr double step = 1e-5;
  for (std::int64_t i = 0; i < n; ++i) x[i] = -5 + 0.25 * static_cast<double>(i);
  auto x_above = x, x_below = x;
  for (std::int64_t i = 0; i < n; ++i) {
    x_above[i] += step;
    x_below[i] -= step;
  }
  Stream stream = cpu_stream();
  gelu_forward(x_above.view(), above.view(), stream);
  gelu_forward(x_below.view(), below.view(), stream);
  gelu_bias_backward(dy.view(), x.view(), dx.view(), db.view(), stream);
  stream.synchronize();
  for (std::int64_t i = 0; i < n; ++i) {
    CHECK(dx[i] == Approx((above[i] - below[i]) / (x_above[i] - x_below[i])).epsilon(1e-6).margin(1e-9));
  }
}

TEMPLATE_TEST_CASE("gelu is finite far out and keeps NaN", "[kernels][activation]", float, double) {
  HostTensor<TestType> x({1, 5}), y({1, 5}), dy({1, 5}, 1), dx({1, 5}), db({5});
  x.data = {-1000, -30, 0, 1000, std::numeric_limits<TestType>::quiet_NaN()};
  Stream stream = cpu_stream();
  gelu_forward(x.view(), y.view(), stream);
  gelu_bias_backward(dy.view(), x.view(), dx.view(), db.view(), stream);
  stream.synchronize();
  CHECK(std::abs(y[0]) < 1e-30);
  CHECK(std::abs(y[1]) < 1e-30);
  CHECK(y[2] == 0);
  CHECK(y[3] == 1000);
  CHECK(std::isnan(y[4]));
  CHECK(std::abs(dx[0]) < 1e-20);
  CHECK(dx[2] == TestType(0.5));
  CHECK(dx[3] == 1);
  CHECK(std::isnan(dx[4]));
}

TEMPLATE_TEST_CASE(
    "biases and gelu are bitwise the same for 1 and 2 threads, when recomputed, and on a shard of columns",
    "[kernels][activation]", float, double) {
  const std::int64_t m = 101, n = 1283;  // above the sizes at which threads are used
  const auto one = run_gelu<TestType>(m, n, 1), two = run_gelu<TestType>(m, n, 2);
  CHECK(one.x.data == two.x.data);
  CHECK(one.y.data == two.y.data);
  CHECK(one.dx.data == two.dx.data);
  CHECK(one.db.data == two.db.data);

  HostTensor<TestType> again({m, n});
  Stream stream = cpu_stream(2);
  gelu_forward(one.x.view(), again.view(), stream);
  stream.synchronize();
  CHECK(again.data == one.y.data);

  auto sum_one = random_tensor<TestType>({n}, 8), sum_two = sum_one;
  Stream single = cpu_stream(1);
  bias_backward(one.y.view(), sum_one.view(), single);
  bias_backward(one.y.view(), sum_two.view(), stream);
  CHECK(sum_one.data == sum_two.data);

  // Columns [500, 500 + 37) alone.
  const std::int64_t begin = 500, width = 37;
  HostTensor<TestType> x({m, width}), dy({m, width}), y({m, width}), db({width});
  const auto all_dy = random_tensor<TestType>({m, n}, 3), old_db = random_tensor<TestType>({n}, 4);
  for (std::int64_t c = 0; c < width; ++c) {
    db[c] = old_db[begin + c];
    for (std::int64_t r = 0; r < m; ++r) {
      x[r * width + c] = one.x[r * n + begin + c];
      dy[r * width + c] = all_dy[r * n + begin + c];
    }
  }
  gelu_forward(x.view(), y.view(), stream);
  gelu_bias_backward(dy.view(), x.view(), dy.view(), db.view(), stream);
  stream.synchronize();
  bool equal = true;
  for (std::int64_t c = 0; c < width; ++c) {
    equal = equal && db[c] == one.db[begin + c];
    for (std::int64_t r = 0; r < m; ++r) {
      equal = equal && y[r * width + c] == one.y[r * n + begin + c];
      equal = equal && dy[r * width + c] == one.dx[r * n + begin + c];
    }
  }
  CHECK(equal);
}

TEST_CASE("biases refuse shapes that do not fit", "[kernels][activation]") {
  HostTensor<float> x({4, 8}), bias({7}), none({0, 7});
  HostTensor<double> wide({8});
  Stream stream = cpu_stream();
  CHECK_THROWS_AS(add_bias(x.view(), bias.view(), stream), Error);
  CHECK_THROWS_AS(add_bias(x.view(), wide.view(), stream), Error);
  add_bias(none.view(), bias.view(), stream);
}
