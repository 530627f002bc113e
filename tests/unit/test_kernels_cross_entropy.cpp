#include <algorithm>
#include <cmath>

#include "../../src/kernels/cpu/vector_math.hpp"
#include "potato/kernels/cross_entropy.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

// A shard holds columns [first, first + valid) of the logits, then padding.
struct Shard {
  std::int64_t first;
  std::int64_t valid;
  std::int64_t padding;
};

template <typename T>
struct Result {
  double loss;
  HostTensor<T> gradient;  // [M, V]
};

// The three steps over all shards, with the reductions a tensor group would do.
template <typename T>
Result<T> run_sharded(const HostTensor<T>& logits, const HostTensor<std::int32_t>& targets,
                      const std::vector<Shard>& shards, double gradient_scale, int threads = 1) {
  const std::int64_t m = logits.shape[0], v = logits.shape[1];
  Stream stream = cpu_stream(threads);
  std::vector<HostTensor<T>> parts;
  HostTensor<T> row_max({m}, std::numeric_limits<T>::lowest()), sums({2, m});
  for (const Shard& shard : shards) {
    HostTensor<T> part({m, shard.valid + shard.padding}, std::numeric_limits<T>::quiet_NaN());
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < shard.valid; ++j) part[i * part.shape[1] + j] = logits[i * v + shard.first + j];
    }
    HostTensor<T> local({m});
    cross_entropy_max(part.view(), shard.valid, local.view(), stream);
    stream.synchronize();
    for (std::int64_t i = 0; i < m; ++i) row_max[i] = std::max(row_max[i], local[i]);
    parts.push_back(std::move(part));
  }
  for (std::size_t s = 0; s < shards.size(); ++s) {
    HostTensor<T> local({2, m});
    cross_entropy_sums(parts[s].view(), shards[s].valid, shards[s].first, targets.view(), row_max.view(), local.view(),
                       stream);
    stream.synchronize();
    for (std::int64_t i = 0; i < 2 * m; ++i) sums[i] += local[i];
  }
  HostTensor<double> loss({1}, 100);  // the sum is added to what is there
  cross_entropy_loss(sums.view(), targets.view(), loss.view(), stream);
  HostTensor<T> gradient({m, v});
  for (std::size_t s = 0; s < shards.size(); ++s) {
    cross_entropy_backward(parts[s].view(), shards[s].valid, shards[s].first, targets.view(), row_max.view(),
                           sums.view(), gradient_scale, stream);
    stream.synchronize();
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < parts[s].shape[1]; ++j) {
        const T value = parts[s][i * parts[s].shape[1] + j];
        if (j < shards[s].valid) {
          gradient[i * v + shards[s].first + j] = value;
        } else if (value != 0) {
          FAIL("padding column " << j << " has gradient " << value);
        }
      }
    }
  }
  return {loss[0] - 100, gradient};
}

double naive_loss(const HostTensor<double>& logits, const HostTensor<std::int32_t>& targets) {
  const std::int64_t v = logits.shape[1];
  double loss = 0;
  for (std::int64_t i = 0; i < logits.shape[0]; ++i) {
    if (targets[i] < 0) continue;
    const double* row = &logits[i * v];
    const double maximum = *std::max_element(row, row + v);
    double sum = 0;
    for (std::int64_t j = 0; j < v; ++j) sum += std::exp(row[j] - maximum);
    loss += std::log(sum) + maximum - row[targets[i]];
  }
  return loss;
}

HostTensor<std::int32_t> some_targets(std::int64_t m, std::int64_t v) {
  HostTensor<std::int32_t> targets({m});
  for (std::int64_t i = 0; i < m; ++i) targets[i] = i % 5 == 2 ? -1 : static_cast<std::int32_t>(i * 97 % v);
  return targets;
}

const std::vector<std::vector<Shard>> splits_of_257 = {{{0, 257, 0}},
                                                       {{0, 257, 127}},
                                                       {{0, 128, 0}, {128, 128, 0}, {256, 1, 127}},
                                                       {{0, 200, 0}, {200, 57, 143}, {400, 0, 200}}};

template <typename T>
void check_splits(double tolerance) {
  const auto wide = random_tensor<double>({23, 257}, 11, 4);
  HostTensor<T> logits(wide.shape);
  HostTensor<double> rounded(wide.shape);
  for (std::int64_t i = 0; i < wide.shape.num_elems(); ++i) rounded[i] = logits[i] = static_cast<T>(wide[i]);
  const auto targets = some_targets(23, 257);
  const double expected = naive_loss(rounded, targets);
  const Result<T> whole = run_sharded(logits, targets, splits_of_257[0], 0.25);
  for (const auto& shards : splits_of_257) {
    const Result<T> result = run_sharded(logits, targets, shards, 0.25);
    CHECK(result.loss == Approx(expected).epsilon(tolerance));
    double worst = 0;
    for (std::int64_t i = 0; i < logits.shape.num_elems(); ++i) {
      worst = std::max<double>(worst, std::abs(result.gradient[i] - whole.gradient[i]));
    }
    CHECK(worst <= tolerance);
  }
  const Result<T> threaded = run_sharded(logits, targets, splits_of_257[0], 0.25, 2);
  CHECK(threaded.loss == whole.loss);
  CHECK(threaded.gradient.data == whole.gradient.data);
}

}  // namespace

TEST_CASE("case-11: sharded cross-entropy equals the naive loss, with shards of padding only", "[cross_entropy]") {
  SECTION("fp32") { check_splits<float>(2e-6); }
  SECTION("fp64") { check_splits<double>(1e-13); }
}

TEST_CASE("the gradient of cross-entropy equals finite differences, uncounted rows have none", "[cross_entropy]") {
  auto logits = random_tensor<double>({6, 37}, 12, 3);
  const auto targets = some_targets(6, 37);
  const auto result = run_sharded(logits, targets, {{0, 20, 0}, {20, 17, 3}}, 0.5);
  const double step = 1e-5;
  double worst = 0;
  for (std::int64_t i = 0; i < logits.shape.num_elems(); ++i) {
    const double old = logits[i];
    logits[i] = old + step;
    const double above = naive_loss(logits, targets);
    logits[i] = old - step;
    const double below = naive_loss(logits, targets);
    logits[i] = old;
    worst = std::max(worst, std::abs(result.gradient[i] - 0.5 * (above - below) / (2 * step)));
    if (targets[i / 37] < 0) CHECK(result.gradient[i] == 0);
  }
  CHECK(worst < 1e-9);
}

TEST_CASE("cross-entropy of extreme logits is finite", "[cross_entropy]") {
  HostTensor<float> logits({3, 40}, -1e4F);
  logits[7] = 1e4F;
  logits[40 + 3] = 1e4F;
  std::fill(logits.data.begin() + 80, logits.data.end(), 1e4F);
  HostTensor<std::int32_t> targets({3}, 7);
  const auto result = run_sharded(logits, targets, {{0, 33, 0}, {33, 7, 1}}, 1);
  CHECK(result.loss == Approx(2e4 + std::log(40.0)));
  for (const float value : result.gradient.data) CHECK(std::isfinite(value));
  CHECK(result.gradient[7] == 0);
  CHECK(result.gradient[40 + 3] == 1);
  CHECK(result.gradient[40 + 7] == -1);
}

TEMPLATE_TEST_CASE("fused cross-entropy equals the steps", "[cross_entropy]", float, double) {
  const std::int64_t m = 23, v = 257, padding = 7;
  const double tolerance = sizeof(TestType) == 4 ? 2e-6 : 1e-13;
  const auto logits = random_tensor<TestType>({m, v}, 11, 4);
  const auto targets = some_targets(m, v);
  const auto expected = run_sharded(logits, targets, {{0, v, 0}}, 0.25);
  HostTensor<TestType> padded({m, v + padding}, std::numeric_limits<TestType>::quiet_NaN());
  for (std::int64_t i = 0; i < m * v; ++i) padded[i / v * (v + padding) + i % v] = logits[i];
  const auto before = padded;
  HostTensor<TestType> row_losses({m}, 9);
  HostTensor<double> loss({1}, 100);
  Stream stream = cpu_stream(2);
  cross_entropy_fused(padded.view(), v, targets.view(), 0.25, false, row_losses.view(), loss.view(), stream);
  CHECK(loss[0] - 100 == Approx(expected.loss).epsilon(tolerance));
  for (std::int64_t i = 0; i < m * v; ++i) {
    const std::int64_t at = i / v * (v + padding) + i % v;
    REQUIRE(padded[at] == before[at]);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    if (targets[i] < 0) REQUIRE(row_losses[i] == 0);
    sum += row_losses[i];
  }
  CHECK(loss[0] == 100 + sum);
  cross_entropy_fused(padded.view(), v, targets.view(), 0.25, true, row_losses.view(), loss.view(), stream);
  CHECK(loss[0] == (100 + sum) + sum);
  double worst = 0;
  for (std::int64_t i = 0; i < m * (v + padding); ++i) {
    const std::int64_t row = i / (v + padding), column = i % (v + padding);
    const double gradient = column < v ? expected.gradient[row * v + column] : 0;
    worst = std::max<double>(worst, std::abs(padded[i] - gradient));
    if (column >= v || targets[row] < 0) REQUIRE(padded[i] == 0);
  }
  CHECK(worst <= tolerance);
}

TEMPLATE_TEST_CASE("cross-entropy of 16-bit logits is that of their values in fp32", "[cross_entropy]", BFloat16,
                   Float16) {
  const std::int64_t m = 23, v = 257;
  HostTensor<TestType> logits({m, v}, TestType{});
  HostTensor<float> wide = random_tensor<float>({m, v}, 11, 4);
  for (std::size_t i = 0; i < wide.data.size(); ++i) {
    logits.data[i] = TestType(wide.data[i]);
    wide.data[i] = static_cast<float>(logits.data[i]);
  }
  const auto targets = some_targets(m, v);
  auto steps = logits;
  HostTensor<float> row_max({m}), sums({2, m}), row_losses({m}), row_losses_wide({m});
  HostTensor<double> loss({1}), loss_wide({1}), loss_steps({1});
  Stream stream = cpu_stream(2);
  cross_entropy_max(steps.view(), v, row_max.view(), stream);
  cross_entropy_sums(steps.view(), v, 0, targets.view(), row_max.view(), sums.view(), stream);
  cross_entropy_loss(sums.view(), targets.view(), loss_steps.view(), stream);
  cross_entropy_backward(steps.view(), v, 0, targets.view(), row_max.view(), sums.view(), 0.25, stream);
  cross_entropy_fused(logits.view(), v, targets.view(), 0.25, true, row_losses.view(), loss.view(), stream);
  cross_entropy_fused(wide.view(), v, targets.view(), 0.25, true, row_losses_wide.view(), loss_wide.view(), stream);
  CHECK(loss[0] == loss_wide[0]);
  CHECK(loss[0] == Approx(loss_steps[0]).epsilon(1e-6));
  double from_steps = 0;
  for (std::size_t i = 0; i < wide.data.size(); ++i) {
    REQUIRE(logits.data[i].bits == TestType(wide.data[i]).bits);
    from_steps = std::max<double>(from_steps, std::abs(static_cast<float>(steps.data[i]) - wide.data[i]));
  }
  CHECK(from_steps <= 1e-3);  // gradients are at most 0.25
  CHECK_THROWS_AS(cross_entropy_max(logits.view(), v, HostTensor<TestType>({m}, TestType{}).view(), stream), Error);
}

TEST_CASE("vector math is accurate and right at its limits", "[vector_math]") {
  using cpu::fast_exp, cpu::fast_tanh;
  double exp32 = 0, exp64 = 0, tanh32 = 0, tanh64 = 0;
  for (int i = -20000; i <= 20000; ++i) {
    const double x = i * 0.00431;
    const auto narrow = static_cast<float>(x);
    exp32 = std::max(exp32, std::abs(fast_exp(narrow) / std::exp(static_cast<double>(narrow)) - 1));
    exp64 = std::max(exp64, std::abs(fast_exp(8 * x) / std::exp(8 * x) - 1));
    const double y = x * std::abs(x) * 0.002;  // dense near 0
    if (y == 0) continue;
    const auto narrow_y = static_cast<float>(y);
    tanh32 = std::max(tanh32, std::abs(fast_tanh(narrow_y) / std::tanh(static_cast<double>(narrow_y)) - 1));
    tanh64 = std::max(tanh64, std::abs(fast_tanh(y) / std::tanh(y) - 1));
  }
  CHECK(exp32 < 3e-7);
  CHECK(exp64 < 1e-15);
  CHECK(tanh32 < 3e-7);
  CHECK(tanh64 < 1e-15);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(fast_exp(-infinity) == 0);
  CHECK(fast_exp(infinity) == infinity);
  CHECK(fast_exp(-1e300) == 0);
  CHECK(fast_exp(0.0) == 1);
  CHECK(std::isnan(fast_exp(std::nan(""))));
  CHECK(fast_tanh(infinity) == 1);
  CHECK(fast_tanh(-1e30F) == -1);
  CHECK(std::isnan(fast_tanh(std::nanf(""))));
  CHECK(fast_exp(-std::numeric_limits<float>::infinity()) == 0);
  CHECK(fast_exp(-1e30F) == 0);
  CHECK(fast_exp(100.0F) == std::numeric_limits<float>::infinity());
  CHECK(fast_exp(-100.0F) == Approx(std::exp(-100.0)).epsilon(0.02));  // subnormal
}
