// M rows, C channels.
#include <algorithm>
#include <cmath>

#include "potato/kernels/dropout.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

Dropout dropout_of(double p) { return {p, philox_key(11, "layer.3.mlp")}; }

bool is_kept(const Dropout& dropout, const TokenRows& rows, std::int64_t row, std::int64_t channel) {
  const std::int64_t token = rows.first_row + row;
  const auto sample = rows.first_sample + static_cast<std::uint64_t>(token / rows.sequence_length);
  return philox_u32(dropout.key, RandomDomain::dropout, sample,
                    static_cast<std::uint32_t>(token % rows.sequence_length),
                    static_cast<std::uint64_t>(channel)) >= dropout_threshold(dropout.p);
}

template <typename T>
struct Branch {
  HostTensor<T> x, bias, residual, dy, y, dx, db;

  Branch(std::int64_t m, std::int64_t c)
      : x(random_tensor<T>({m, c}, 1)),
        bias(random_tensor<T>({c}, 2)),
        residual(random_tensor<T>({m, c}, 3)),
        dy(random_tensor<T>({m, c}, 4)),
        y({m, c}),
        dx({m, c}),
        db(random_tensor<T>({c}, 5)) {}

  void run(const Dropout& dropout, const TokenRows& rows, int threads = 1) {
    Stream stream = cpu_stream(threads);
    bias_dropout_add_forward(x.view(), bias.view(), residual.view(), y.view(), dropout, rows, stream);
    bias_dropout_add_backward(dy.view(), dx.view(), db.view(), dropout, rows, stream);
    stream.synchronize();
  }
};

template <typename T>
void check_against_naive(std::int64_t m, std::int64_t c, double p, double tolerance) {
  Branch<T> branch(m, c);
  const auto old_db = branch.db;
  const Dropout dropout = dropout_of(p);
  const TokenRows rows{(1ULL << 40) + 3, 5, 2};
  branch.run(dropout, rows);
  double worst = 0;
  for (std::int64_t channel = 0; channel < c; ++channel) {
    double sum = old_db[channel];
    for (std::int64_t row = 0; row < m; ++row) {
      const std::int64_t i = row * c + channel;
      const double mask = p == 0 ? 1 : is_kept(dropout, rows, row, channel) ? 1 / (1 - p) : 0;
      const double y = branch.residual[i] + mask * (branch.x[i] + static_cast<double>(branch.bias[channel]));
      worst = std::max({worst, std::abs(branch.y[i] - y), std::abs(branch.dx[i] - mask * branch.dy[i])});
      if (mask == 0) CHECK(branch.y[i] == branch.residual[i]);
      if (mask == 0) CHECK(branch.dx[i] == 0);
      sum += mask * branch.dy[i];
    }
    worst = std::max(worst, std::abs(branch.db[channel] - sum) / std::max(1.0, std::abs(sum)));
  }
  CAPTURE(m, c, p);
  CHECK(worst < tolerance);
}

}  // namespace

TEST_CASE("bias, dropout and residual agree with the definition of the mask at odd sizes", "[kernels][dropout]") {
  for (const std::int64_t c : {1, 3, 7, 33, 64, 257, 1100}) {
    for (const double p : {0.0, 0.1, 0.5}) {
      check_against_naive<double>(13, c, p, 1e-14);
      check_against_naive<float>(13, c, p, 5e-6);
    }
  }
}

TEMPLATE_TEST_CASE("case-12: the dropout mask is the same however rows are split and for 1 and 2 threads",
                   "[kernels][dropout]", float, double) {
  const std::int64_t m = 96, c = 135, sequence = 24;
  const Dropout dropout = dropout_of(0.2);
  Branch<TestType> one(m, c), two(m, c);
  one.run(dropout, {7, sequence, 0}, 1);
  two.run(dropout, {7, sequence, 0}, 2);
  CHECK(one.y.data == two.y.data);
  CHECK(one.dx.data == two.dx.data);
  CHECK(one.db.data == two.db.data);
  for (const std::int64_t shard_rows : {1, 12, 32, 48}) {
    HostTensor<TestType> y({m, c}), dx({m, c}), db({c});
    Stream stream = cpu_stream(2);
    for (std::int64_t begin = 0; begin < m; begin += shard_rows) {
      const TokenRows rows{7, sequence, begin};
      const auto part = [&](auto& tensor) { return tensor.view().rows(begin, shard_rows); };
      bias_dropout_add_forward(part(one.x), one.bias.view(), part(one.residual), part(y), dropout, rows, stream);
      bias_dropout_add_backward(part(one.dy), part(dx), db.view(), dropout, rows, stream);
    }
    stream.synchronize();
    CAPTURE(shard_rows);
    CHECK(y.data == one.y.data);
    CHECK(dx.data == one.dx.data);
  }
  // The micro-batch's later samples as a micro-batch of their own.
  HostTensor<TestType> y({m / 2, c});
  Stream stream = cpu_stream();
  bias_dropout_add_forward(one.x.view().rows(m / 2, m / 2), one.bias.view(), one.residual.view().rows(m / 2, m / 2),
                           y.view(), dropout, {9, sequence, 0}, stream);
  stream.synchronize();
  CHECK(std::equal(y.data.begin(), y.data.end(), one.y.data.begin() + m / 2 * c));
}

TEST_CASE("forward and backward use one mask, kept with the right frequency", "[kernels][dropout]") {
  const std::int64_t m = 400, c = 500;
  for (const double p : {0.1, 0.5}) {
    Branch<float> branch(m, c);
    branch.x = HostTensor<float>({m, c}, 1);
    branch.bias = HostTensor<float>({c}, 0);
    branch.residual = HostTensor<float>({m, c}, 0);
    branch.dy = HostTensor<float>({m, c}, 1);
    branch.run(dropout_of(p), {0, 100, 0}, 2);
    CHECK(branch.y.data == branch.dx.data);
    const auto kept = static_cast<double>(m * c - std::count(branch.y.data.begin(), branch.y.data.end(), 0.0F));
    const auto n = static_cast<double>(m * c);
    CHECK(std::abs(kept - n * (1 - p)) < 4 * std::sqrt(n * p * (1 - p)));
  }
}

TEST_CASE("dropout works in place", "[kernels][dropout]") {
  Branch<float> branch(21, 130);
  const TokenRows rows{1, 7, 0};
  branch.run(dropout_of(0.3), rows);
  auto over_x = branch.x, over_residual = branch.residual;
  Stream stream = cpu_stream();
  bias_dropout_add_forward(over_x.view(), branch.bias.view(), branch.residual.view(), over_x.view(), dropout_of(0.3),
                           rows, stream);
  bias_dropout_add_forward(branch.x.view(), branch.bias.view(), over_residual.view(), over_residual.view(),
                           dropout_of(0.3), rows, stream);
  stream.synchronize();
  CHECK(over_x.data == branch.y.data);
  CHECK(over_residual.data == branch.y.data);
}

TEST_CASE("dropout refuses rows without a sequence length", "[kernels][dropout]") {
  Branch<float> branch(4, 8);
  CHECK_THROWS_AS(branch.run(dropout_of(0.1), {0, 0, 0}), Error);
  CHECK_THROWS_AS(branch.run(dropout_of(0.1), {1ULL << 56, 8, 0}), Error);
  CHECK_NOTHROW(branch.run(dropout_of(0), {}));
}
