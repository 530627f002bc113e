// Shape letters: B batch, T sequence, H query heads, K key/value heads, D width of a head.
#include <algorithm>
#include <cmath>

#include "potato/kernels/attention.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

AttentionShape make_shape(std::int64_t batch, std::int64_t sequence, std::int64_t heads, std::int64_t kv_heads,
                          std::int64_t head_dim, bool causal = true) {
  return {batch, sequence, heads, kv_heads, head_dim, causal, 1 / std::sqrt(static_cast<double>(head_dim)), 0};
}

struct Setting {
  AttentionShape shape;
  Dropout dropout;
  TokenRows rows;

  Setting(AttentionShape s, double p, std::uint64_t first_sample = 1000)
      : shape(s), dropout{p, philox_key(5, "layers.0.attention")}, rows{first_sample, s.sequence, 0} {}
  Shape qkv_shape() const {
    return {shape.batch * shape.sequence, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim};
  }
  Shape output_shape() const { return {shape.batch * shape.sequence, shape.num_heads * shape.head_dim}; }
  Shape row_shape() const { return {shape.batch, shape.num_heads, shape.sequence}; }
};

template <typename T>
struct Forward {
  HostTensor<T> y;
  HostTensor<T> lse;
};

template <typename T>
Forward<T> forward(const Setting& setting, const HostTensor<T>& qkv, int threads = 1) {
  Forward<T> out{HostTensor<T>(setting.output_shape(), std::nan("")), HostTensor<T>(setting.row_shape(), std::nan(""))};
  Stream stream = cpu_stream(threads);
  attention_forward(qkv.view(), out.y.view(), out.lse.view(), setting.shape, setting.dropout, setting.rows, stream);
  stream.synchronize();
  return out;
}

template <typename T>
HostTensor<T> backward(const Setting& setting, const HostTensor<T>& qkv, const HostTensor<T>& dy, int threads = 1) {
  const Forward<T> saved = forward(setting, qkv, threads);
  HostTensor<T> dqkv(setting.qkv_shape(), std::nan(""));
  HostTensor<T> scratch(setting.row_shape());
  Stream stream = cpu_stream(threads);
  attention_backward(dy.view(), qkv.view(), saved.y.view(), saved.lse.view(), dqkv.view(), scratch.view(),
                     setting.shape, setting.dropout, setting.rows, stream);
  stream.synchronize();
  return dqkv;
}

template <typename T>
Forward<double> naive_forward(const Setting& setting, const HostTensor<T>& qkv) {
  const AttentionShape& s = setting.shape;
  Forward<double> out{HostTensor<double>(setting.output_shape()), HostTensor<double>(setting.row_shape())};
  const std::int64_t width = qkv.shape[1], group = s.num_heads / s.num_kv_heads;
  std::vector<double> scores(static_cast<std::size_t>(s.sequence));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.num_heads; ++h) {
      for (std::int64_t q = 0; q < s.sequence; ++q) {
        const std::int64_t num_keys = s.causal ? q + 1 : s.sequence;
        const std::int64_t row = b * s.sequence + q;
        double sum = 0;
        for (std::int64_t key = 0; key < num_keys; ++key) {
          double dot = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            dot += static_cast<double>(qkv[row * width + h * s.head_dim + d]) *
                   qkv[(b * s.sequence + key) * width + (s.num_heads + h / group) * s.head_dim + d];
          }
          scores[static_cast<std::size_t>(key)] = std::exp(dot * s.scale);
          sum += scores[static_cast<std::size_t>(key)];
        }
        out.lse[(b * s.num_heads + h) * s.sequence + q] = std::log(sum);
        for (std::int64_t key = 0; key < num_keys; ++key) {
          double p = scores[static_cast<std::size_t>(key)] / sum;
          if (setting.dropout.p > 0) {
            const std::uint32_t bits = philox_u32(
                setting.dropout.key, RandomDomain::dropout, setting.rows.first_sample + static_cast<std::uint64_t>(b),
                static_cast<std::uint32_t>(q), static_cast<std::uint64_t>((s.first_head + h) * s.sequence + key));
            p = bits >= dropout_threshold(setting.dropout.p) ? p / (1 - setting.dropout.p) : 0;
          }
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            out.y[row * s.num_heads * s.head_dim + h * s.head_dim + d] +=
                p * qkv[(b * s.sequence + key) * width + (s.num_heads + s.num_kv_heads + h / group) * s.head_dim + d];
          }
        }
      }
    }
  }
  return out;
}

template <typename A, typename B>
double max_difference(const HostTensor<A>& a, const HostTensor<B>& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.shape.num_elems(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = difference <= worst ? worst : difference;  // keeps a NaN
  }
  return worst;
}

template <typename T>
void check_forward(const Setting& setting, double tolerance) {
  const auto qkv = random_tensor<T>(setting.qkv_shape(), 21, 2);
  const Forward<T> result = forward(setting, qkv);
  const Forward<double> expected = naive_forward(setting, qkv);
  INFO("T " << setting.shape.sequence << " D " << setting.shape.head_dim << " causal " << setting.shape.causal);
  CHECK(max_difference(result.y, expected.y) < tolerance);
  CHECK(max_difference(result.lse, expected.lse) < 4 * tolerance);
}

// The part of a [rows, parts of `width`] tensor that belongs to heads [begin, begin + count), out of `total` parts.
template <typename T>
void append_heads(const HostTensor<T>& in, std::int64_t begin, std::int64_t count, std::int64_t width,
                  HostTensor<T>& out, std::int64_t at) {
  for (std::int64_t row = 0; row < in.shape[0]; ++row) {
    for (std::int64_t j = 0; j < count * width; ++j) {
      out[row * out.shape[1] + at * width + j] = in[row * in.shape[1] + begin * width + j];
    }
  }
}

// dy and dqkv of heads [begin, begin + count) as another rank would hold them (K = H).
template <typename T>
HostTensor<T> heads_of(const HostTensor<T>& in, std::int64_t parts, std::int64_t heads, std::int64_t begin,
                       std::int64_t count, std::int64_t width) {
  HostTensor<T> out({in.shape[0], parts * count * width});
  for (std::int64_t part = 0; part < parts; ++part) {
    append_heads(in, part * heads + begin, count, width, out, part * count);
  }
  return out;
}

template <typename T>
void check_splits(double p) {
  const std::int64_t heads = 3, width = 24;
  const Setting all(make_shape(2, 61, heads, heads, width), p);
  const auto qkv = random_tensor<T>(all.qkv_shape(), 22);
  const auto dy = random_tensor<T>(all.output_shape(), 23);
  const auto y = forward(all, qkv).y;
  const auto dqkv = backward(all, qkv, dy);
  CHECK(forward(all, qkv, 2).y.data == y.data);
  CHECK(backward(all, qkv, dy, 2).data == dqkv.data);
  for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 2}}) {
    Setting part = all;
    part.shape.num_heads = part.shape.num_kv_heads = count;
    part.shape.first_head = begin;
    const auto part_qkv = heads_of(qkv, 3, heads, begin, count, width);
    CHECK(forward(part, part_qkv).y.data == heads_of(y, 1, heads, begin, count, width).data);
    CHECK(backward(part, part_qkv, heads_of(dy, 1, heads, begin, count, width)).data ==
          heads_of(dqkv, 3, heads, begin, count, width).data);
  }
  // The second sample alone.
  Setting one = all;
  one.shape.batch = 1;
  one.rows.first_sample += 1;
  HostTensor<T> one_qkv(one.qkv_shape()), one_y(one.output_shape());
  std::copy(qkv.data.end() - static_cast<std::ptrdiff_t>(one_qkv.data.size()), qkv.data.end(), one_qkv.data.begin());
  std::copy(y.data.end() - static_cast<std::ptrdiff_t>(one_y.data.size()), y.data.end(), one_y.data.begin());
  CHECK(forward(one, one_qkv).y.data == one_y.data);
}

// Central differences of sum(y · dy) over every element of qkv; the largest error relative to the largest gradient.
double gradient_error(const Setting& setting) {
  auto qkv = random_tensor<double>(setting.qkv_shape(), 24);
  const auto dy = random_tensor<double>(setting.output_shape(), 25);
  const auto dqkv = backward(setting, qkv, dy);
  const auto objective = [&] {
    const auto y = naive_forward(setting, qkv).y;
    double sum = 0;
    for (std::int64_t i = 0; i < y.shape.num_elems(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  double worst = 0, largest = 0;
  const double step = 1e-5;
  for (std::int64_t i = 0; i<qkv.shape.num_elems(); i += setting.shape.sequence> 20 ? 37 : 1) {
    const double old = qkv[i];
    qkv[i] = old + step;
    const double above = objective();
    qkv[i] = old - step;
    const double below = objective();
    qkv[i] = old;
    const double expected = (above - below) / (2 * step);
    const double error = std::abs(dqkv[i] - expected);
    worst = error <= worst ? worst : error;
    largest = std::max(largest, std::abs(expected));
  }
  return worst / largest;
}

}  // namespace

TEST_CASE("attention forward equals the naive softmax", "[attention]") {
  for (const std::int64_t sequence : {1, 7, 33, 65, 130}) {
    for (const bool causal : {true, false}) {
      for (const double p : {0.0, 0.3}) {
        const Setting equal(make_shape(2, sequence, 2, 2, 16, causal), p);
        const Setting grouped(make_shape(1, sequence, 6, 2, 5, causal), p);
        check_forward<float>(equal, 4e-6);
        check_forward<double>(equal, 1e-14);
        check_forward<float>(grouped, 4e-6);
        check_forward<double>(grouped, 1e-14);
      }
    }
  }
  check_forward<double>(Setting(make_shape(1, 260, 1, 1, 40, false), 0), 1e-14);
  check_forward<float>(Setting(make_shape(1, 260, 1, 1, 128), 0), 4e-6);
}

TEST_CASE("attention backward equals finite differences", "[attention]") {
  for (const bool causal : {true, false}) {
    for (const double p : {0.0, 0.3}) {
      INFO("causal " << causal << " dropout " << p);
      CHECK(gradient_error(Setting(make_shape(2, 7, 2, 2, 4, causal), p)) < 1e-8);
      CHECK(gradient_error(Setting(make_shape(1, 13, 4, 2, 3, causal), p)) < 1e-8);
      CHECK(gradient_error(Setting(make_shape(1, 65, 2, 1, 10, causal), p)) < 1e-8);
    }
  }
}

TEST_CASE("attention backward in fp32 is close to fp64", "[attention]") {
  const Setting setting(make_shape(2, 130, 4, 2, 32), 0.1);
  const auto qkv = random_tensor<float>(setting.qkv_shape(), 26, 2);
  const auto dy = random_tensor<float>(setting.output_shape(), 27);
  HostTensor<double> wide_qkv(qkv.shape), wide_dy(dy.shape);
  std::copy(qkv.data.begin(), qkv.data.end(), wide_qkv.data.begin());
  std::copy(dy.data.begin(), dy.data.end(), wide_dy.data.begin());
  CHECK(max_difference(backward(setting, qkv, dy), backward(setting, wide_qkv, wide_dy)) < 2e-5);
}

// Inputs are rounded before, so the 16-bit call must give fp32's result on them, rounded once.
template <typename S>
void check_stored_as(double p) {
  const Setting setting(make_shape(2, 37, 4, 2, 12), p);
  const auto wide_qkv = random_tensor<float>(setting.qkv_shape(), 30, 2);
  const auto wide_dy = random_tensor<float>(setting.output_shape(), 31);
  const auto rounded = [](const HostTensor<float>& in) {
    HostTensor<S> out(in.shape);
    for (std::size_t i = 0; i < in.data.size(); ++i) out.data[i] = S(in.data[i]);
    return out;
  };
  const auto widened = [](const HostTensor<S>& in) {
    HostTensor<float> out(in.shape);
    for (std::size_t i = 0; i < in.data.size(); ++i) out.data[i] = static_cast<float>(in.data[i]);
    return out;
  };
  const HostTensor<S> qkv = rounded(wide_qkv), dy = rounded(wide_dy);
  HostTensor<S> y(setting.output_shape(), S(std::nanf(""))), dqkv(setting.qkv_shape(), S(std::nanf("")));
  HostTensor<float> lse(setting.row_shape(), std::nanf("")), scratch(setting.row_shape());
  Stream stream = cpu_stream();
  attention_forward(qkv.view(), y.view(), lse.view(), setting.shape, setting.dropout, setting.rows, stream);
  const Forward<float> expected = forward(setting, widened(qkv));
  CHECK(lse.data == expected.lse.data);
  CHECK(widened(y).data == widened(rounded(expected.y)).data);

  // Backward sees the rounded y.
  const HostTensor<float> saved_y = widened(y), wide_in = widened(qkv), wide_grad = widened(dy);
  HostTensor<float> expected_dqkv(setting.qkv_shape());
  attention_backward(wide_grad.view(), wide_in.view(), saved_y.view(), ConstTensorView(lse.view()),
                     expected_dqkv.view(), scratch.view(), setting.shape, setting.dropout, setting.rows, stream);
  const HostTensor<float> sums = scratch;
  attention_backward(dy.view(), qkv.view(), ConstTensorView(y.view()), ConstTensorView(lse.view()), dqkv.view(),
                     scratch.view(), setting.shape, setting.dropout, setting.rows, stream);
  CHECK(scratch.data == sums.data);
  CHECK(widened(dqkv).data == widened(rounded(expected_dqkv)).data);
}

TEST_CASE("attention on 16-bit tensors computes in fp32 and rounds once", "[attention]") {
  for (const double p : {0.0, 0.2}) {
    check_stored_as<BFloat16>(p);
    check_stored_as<Float16>(p);
  }
}

TEST_CASE("case-12: a head's result depends on its own rows only, with dropout too", "[attention]") {
  for (const double p : {0.0, 0.2}) {
    check_splits<float>(p);
    check_splits<double>(p);
  }
}

TEST_CASE("attention survives extreme scores", "[attention]") {
  const Setting setting(make_shape(1, 20, 1, 1, 8), 0);
  const auto qkv = random_tensor<float>(setting.qkv_shape(), 28, 200);
  for (const float value : forward(setting, qkv).y.data) CHECK(std::isfinite(value));
  for (const float value : backward(setting, qkv, random_tensor<float>(setting.output_shape(), 29)).data) {
    CHECK(std::isfinite(value));
  }
}

TEST_CASE("attention counts the unmasked pairs and refuses wrong shapes", "[attention]") {
  Setting setting(make_shape(2, 10, 4, 2, 8), 0);
  HostTensor<float> qkv(setting.qkv_shape()), y(setting.output_shape()), lse(setting.row_shape()), wrong({20, 30});
  Stream stream = cpu_stream();
  attention_forward(qkv.view(), y.view(), lse.view(), setting.shape, setting.dropout, setting.rows, stream);
  CHECK(stream.costs().flops == 4.0 * 55 * 2 * 4 * 8);
  CHECK_THROWS_AS(
      attention_forward(wrong.view(), y.view(), lse.view(), setting.shape, setting.dropout, setting.rows, stream),
      Error);
  setting.shape.num_kv_heads = 3;
  CHECK_THROWS_AS(
      attention_forward(qkv.view(), y.view(), lse.view(), setting.shape, setting.dropout, setting.rows, stream), Error);
}
