#include <algorithm>
#include <cmath>
#include <limits>

#include "potato/kernels/adamw.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

const TensorView no_copy(nullptr, DType::f32, {0}, Device{});

template <typename T>
struct State {
  HostTensor<T> weight, exp_avg, exp_avg_sq;

  explicit State(std::int64_t n) : weight(random_tensor<T>({n}, 1)), exp_avg({n}), exp_avg_sq({n}) {}

  void step(const HostTensor<T>& gradient, double squared_norm, const AdamWStep& settings, int threads = 1) {
    HostTensor<double> norm({1}, squared_norm);
    Stream stream = cpu_stream(threads);
    adamw(weight.view(), no_copy, gradient.view(), exp_avg.view(), exp_avg_sq.view(), norm.view(), settings, stream);
    stream.synchronize();
  }
};

AdamWStep settings_of(double decay, double max_norm) {
  AdamWStep settings;
  settings.learning_rate = 3e-3;
  settings.weight_decay = decay;
  settings.max_norm = max_norm;
  return settings;
}

template <typename T>
void check_against_naive(std::int64_t n, double decay, double max_norm, double tolerance) {
  State<T> state(n);
  const HostTensor<T> start = state.weight;
  std::vector<double> w(start.data.begin(), start.data.end()), m(w.size()), v(w.size());
  AdamWStep settings = settings_of(decay, max_norm);
  double worst = 0;
  for (settings.step = 1; settings.step <= 6; ++settings.step) {
    const auto gradient = random_tensor<T>({n}, static_cast<unsigned>(10 + settings.step), 0.1);
    double squared_norm = 0;
    for (const T g : gradient.data) squared_norm += static_cast<double>(g) * g;
    state.step(gradient, squared_norm, settings);
    const double norm = std::sqrt(squared_norm);
    const double clip = max_norm > 0 && norm + 1e-6 > max_norm ? max_norm / (norm + 1e-6) : 1;
    const auto t = static_cast<double>(settings.step);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = gradient.data[i] * clip;
      m[i] = settings.beta1 * m[i] + (1 - settings.beta1) * g;
      v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(settings.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(settings.beta2, t));
      w[i] = w[i] * (1 - settings.learning_rate * decay) -
             settings.learning_rate * m_hat / (std::sqrt(v_hat) + settings.eps);
      worst = std::max(worst, std::abs(state.weight.data[i] - w[i]));
      worst = std::max(worst, std::abs(state.exp_avg.data[i] - m[i]) * 10);
      worst = std::max(worst, std::abs(state.exp_avg_sq.data[i] - v[i]) * 100);
    }
  }
  CAPTURE(n, decay, max_norm);
  CHECK(worst < tolerance);
}

}  // namespace

TEST_CASE("adamw agrees with the scalar formula over several steps", "[kernels][adamw]") {
  for (const std::int64_t n : {1, 3, 7, 33, 257}) {
    for (const double decay : {0.0, 0.1}) {
      for (const double max_norm : {0.0, 0.05, 100.0}) {  // off, clipping, not reached
        check_against_naive<double>(n, decay, max_norm, 1e-14);
        check_against_naive<float>(n, decay, max_norm, 1e-6);
      }
    }
  }
}

TEST_CASE("adamw's first step moves each weight by the learning rate", "[kernels][adamw]") {
  State<double> state(5);
  const auto before = state.weight;
  HostTensor<double> gradient({5});
  gradient.data = {1, -2, 0.5, 0, -1e-3};
  state.step(gradient, 0, settings_of(0, 0));
  for (std::int64_t i = 0; i < 5; ++i) {
    const double sign = gradient[i] > 0 ? 1 : gradient[i] < 0 ? -1 : 0;
    CHECK(before[i] - state.weight[i] == Approx(3e-3 * sign).epsilon(2e-5).margin(1e-15));
  }
}

TEMPLATE_TEST_CASE("adamw is bitwise the same for 1 and 2 threads and any split of the memory", "[kernels][adamw]",
                   float, double) {
  const std::int64_t n = 150001;
  State<TestType> one(n), two(n), parts(n);
  const auto gradient = random_tensor<TestType>({n}, 2);
  AdamWStep settings = settings_of(0.1, 1);
  HostTensor<double> norm({1}, 1e4);
  for (settings.step = 1; settings.step <= 2; ++settings.step) {
    one.step(gradient, 1e4, settings, 1);
    two.step(gradient, 1e4, settings, 2);
    Stream stream = cpu_stream(2);
    for (std::int64_t begin = 0; begin < n; begin += 50003) {
      const std::int64_t count = std::min<std::int64_t>(50003, n - begin);
      adamw(parts.weight.view().rows(begin, count), no_copy, gradient.view().rows(begin, count),
            parts.exp_avg.view().rows(begin, count), parts.exp_avg_sq.view().rows(begin, count), norm.view(), settings,
            stream);
    }
    stream.synchronize();
  }
  CHECK(one.weight.data == two.weight.data);
  CHECK(one.exp_avg_sq.data == two.exp_avg_sq.data);
  CHECK(one.weight.data == parts.weight.data);
  CHECK(one.exp_avg.data == parts.exp_avg.data);
}

TEST_CASE("a gradient with a scale is the scaled gradient", "[kernels][adamw]") {
  State<double> scaled(33), plain(33);
  const auto gradient = random_tensor<double>({33}, 2);
  HostTensor<double> smaller = gradient;
  for (double& g : smaller.data) g *= 0.125;  // exact
  AdamWStep settings = settings_of(0.1, 0.05);
  plain.step(smaller, 4, settings);
  settings.gradient_scale = 0.125;
  scaled.step(gradient, 4, settings);
  for (std::int64_t i = 0; i < 33; ++i) {
    CHECK(scaled.weight[i] == Approx(plain.weight[i]).epsilon(1e-14));
    CHECK(scaled.exp_avg[i] == Approx(plain.exp_avg[i]).epsilon(1e-14));
  }
}

TEMPLATE_TEST_CASE("adamw rounds the new weight into the working copy", "[kernels][adamw]", BFloat16, Float16) {
  for (const std::int64_t n : {1, 7, 33, 150001}) {
    State<float> with(n), without(n);
    const auto gradient = random_tensor<float>({n}, 2);
    std::vector<TestType> copy(static_cast<std::size_t>(n));
    HostTensor<double> norm({1}, 4);
    const AdamWStep settings = settings_of(0.1, 1);
    Stream stream = cpu_stream(2);
    adamw(with.weight.view(), TensorView(copy.data(), dtype_of<TestType>, {n}, Device{}), gradient.view(),
          with.exp_avg.view(), with.exp_avg_sq.view(), norm.view(), settings, stream);
    without.step(gradient, 4, settings);
    bool all_rounded = true;
    double worst = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const TestType expected(with.weight[i]);
      all_rounded = all_rounded && copy[static_cast<std::size_t>(i)].bits == expected.bits;
      worst = std::max<double>(worst, std::abs(with.weight[i] - without.weight[i]));
    }
    CHECK(all_rounded);
    CHECK(worst < 1e-6);  // a product and a sum may be rounded once or twice
  }
}

TEST_CASE("adamw refuses shapes that do not fit and a step of 0", "[kernels][adamw]") {
  State<float> state(8);
  HostTensor<float> gradient({8}), shorter({7});
  AdamWStep settings = settings_of(0, 1);
  CHECK_THROWS_AS(state.step(shorter, 1, settings), Error);
  settings.step = 0;
  CHECK_THROWS_AS(state.step(gradient, 1, settings), Error);
  settings.step = 1;
  std::vector<BFloat16> copy(8);
  HostTensor<double> norm({1});
  Stream stream = cpu_stream();
  const auto step_with = [&](TensorView working_copy, TensorView gradient_view) {
    adamw(state.weight.view(), working_copy, gradient_view, state.exp_avg.view(), state.exp_avg_sq.view(), norm.view(),
          settings, stream);
  };
  CHECK_NOTHROW(step_with({copy.data(), DType::bf16, {8}, Device{}}, gradient.view()));
  CHECK_THROWS_AS(step_with({copy.data(), DType::bf16, {7}, Device{}}, gradient.view()), Error);
  CHECK_THROWS_AS(step_with({copy.data(), DType::f32, {8}, Device{}}, gradient.view()), Error);
  CHECK_THROWS_AS(step_with(no_copy, {copy.data(), DType::bf16, {8}, Device{}}), Error);
}

TEST_CASE("adamw changes nothing where the norm is not finite and it has to skip", "[kernels][adamw]") {
  constexpr std::int64_t n = 37;
  const auto gradient = random_tensor<float>({n}, 3);
  AdamWStep settings = settings_of(0.1, 0);
  settings.skip_nonfinite = true;
  State<float> state(n);
  state.step(gradient, 1, settings);
  const State<float> before = state;
  for (const double norm : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    state.step(gradient, norm, settings);
    CHECK(state.weight.data == before.weight.data);
    CHECK(state.exp_avg.data == before.exp_avg.data);
    CHECK(state.exp_avg_sq.data == before.exp_avg_sq.data);
  }
  settings.skip_nonfinite = false;
  state.step(gradient, std::numeric_limits<double>::infinity(), settings);  // no clipping: the norm is not read
  CHECK(state.weight.data != before.weight.data);
}

TEMPLATE_TEST_CASE("adamw on the host is the same update, and a skipped one still gives the working copy",
                   "[kernels][adamw]", BFloat16, Float16) {
  constexpr std::int64_t n = 70001;
  const auto gradient = random_tensor<float>({n}, 3);
  State<float> on_device(n);
  State<float> on_host(n);
  HostTensor<TestType> device_copy({n});
  HostTensor<TestType> host_copy({n});
  HostTensor<double> norm({1}, 9.0);
  AdamWStep settings = settings_of(0.1, 1);
  settings.skip_nonfinite = true;
  Stream stream = cpu_stream(2);
  adamw(on_device.weight.view(), device_copy.view(), gradient.view(), on_device.exp_avg.view(),
        on_device.exp_avg_sq.view(), norm.view(), settings, stream);
  const auto update_on_host = [&] {
    adamw_on_host(on_host.weight.view(), host_copy.view(), gradient.view(), on_host.exp_avg.view(),
                  on_host.exp_avg_sq.view(), norm.view(), settings, stream);
    stream.synchronize();
  };
  update_on_host();
  const auto same_bits = [&] {
    return std::equal(host_copy.data.begin(), host_copy.data.end(), device_copy.data.begin(),
                      [](TestType a, TestType b) { return a.bits == b.bits; });
  };
  CHECK(on_host.weight.data == on_device.weight.data);
  CHECK(same_bits());
  std::fill(host_copy.data.begin(), host_copy.data.end(), TestType(7.0F));
  norm.data[0] = std::numeric_limits<double>::infinity();
  update_on_host();
  CHECK(on_host.weight.data == on_device.weight.data);
  CHECK(same_bits());
}
