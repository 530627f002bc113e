// M rows, C channels, V tokens.
#include <algorithm>
#include <cmath>

#include "potato/kernels/embedding.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

HostTensor<std::int32_t> random_tokens(std::int64_t m, std::int64_t vocabulary) {
  HostTensor<std::int32_t> tokens({m});
  std::mt19937 generator(17);
  for (auto& token : tokens.data) token = static_cast<std::int32_t>(generator() % static_cast<unsigned>(vocabulary));
  return tokens;
}

}  // namespace

TEMPLATE_TEST_CASE("embedding: shards of the vocabulary add up to the whole", "[kernels][embedding]", float, double) {
  const std::int64_t m = 300, vocabulary = 11;
  for (const std::int64_t c : {1, 7, 33, 257}) {
    const auto tokens = random_tokens(m, vocabulary);
    const auto weight = random_tensor<TestType>({vocabulary, c}, 1);
    const auto dy = random_tensor<TestType>({m, c}, 2);
    HostTensor<TestType> whole({m, c}), sum({m, c}), part({m, c});
    HostTensor<TestType> gradient({vocabulary, c}, 3), gradient_two = gradient, in_shards = gradient;
    Stream stream = cpu_stream(1), two_threads = cpu_stream(2);
    embedding_forward(tokens.view(), weight.view(), 0, whole.view(), stream);
    embedding_backward(tokens.view(), dy.view(), 0, gradient.view(), stream);
    embedding_backward(tokens.view(), dy.view(), 0, gradient_two.view(), two_threads);
    CHECK(gradient.data == gradient_two.data);
    for (const std::int64_t begin : {0, 4, 8, 11}) {  // the last shard is empty
      const std::int64_t count = std::min<std::int64_t>(4, vocabulary - begin);
      part = HostTensor<TestType>({m, c}, 99);
      embedding_forward(tokens.view(), weight.view().rows(begin, count), begin, part.view(), two_threads);
      embedding_backward(tokens.view(), dy.view(), begin, in_shards.view().rows(begin, count), two_threads);
      for (std::int64_t i = 0; i < m * c; ++i) {
        const std::int64_t token = tokens[i / c];
        if (token < begin || token >= begin + count) REQUIRE(part[i] == 0);
        sum[i] += part[i];
      }
    }
    CHECK(sum.data == whole.data);
    CHECK(in_shards.data == gradient.data);
    HostTensor<TestType> expected({vocabulary, c}, 3);
    for (std::int64_t i = 0; i < m * c; ++i) {
      REQUIRE(whole[i] == weight[tokens[i / c] * c + i % c]);
      expected[tokens[i / c] * c + i % c] += dy[i];
    }
    CHECK(gradient.data == expected.data);
  }
}

TEMPLATE_TEST_CASE("positions and dropout agree with the definition, for any split of rows", "[kernels][embedding]",
                   float, double) {
  const std::int64_t m = 90, sequence = 15, first_row = 4;
  const double tolerance = sizeof(TestType) == 4 ? 1e-6 : 1e-15;
  for (const std::int64_t c : {1, 7, 33, 257}) {
    for (const double p : {0.0, 0.25}) {
      const Dropout dropout{p, philox_key(5, "embedding")};
      const TokenRows rows{21, sequence, first_row};
      const auto x = random_tensor<TestType>({m, c}, 1), dy = random_tensor<TestType>({m, c}, 3);
      const auto positions = random_tensor<TestType>({sequence + 2, c}, 2);
      const auto old_gradient = random_tensor<TestType>({sequence + 2, c}, 4);
      HostTensor<TestType> y({m, c}), dx({m, c}), y_two({m, c}), dx_two = dy;
      auto gradient = old_gradient, gradient_two = old_gradient, expected = old_gradient;
      Stream stream = cpu_stream(1), two_threads = cpu_stream(2);
      position_dropout_forward(x.view(), positions.view(), y.view(), dropout, rows, stream);
      position_dropout_backward(dy.view(), dx.view(), gradient.view(), dropout, rows, stream);
      for (const std::int64_t begin : {0, 40}) {  // two shards, two threads, in place
        const std::int64_t count = begin == 0 ? 40 : m - 40;
        const TokenRows shard{21, sequence, first_row + begin};
        position_dropout_forward(x.view().rows(begin, count), positions.view(), y_two.view().rows(begin, count),
                                 dropout, shard, two_threads);
        position_dropout_backward(dx_two.view().rows(begin, count), dx_two.view().rows(begin, count),
                                  gradient_two.view(), dropout, shard, two_threads);
      }
      CAPTURE(c, p);
      CHECK(y.data == y_two.data);
      CHECK(dx.data == dx_two.data);
      CHECK(gradient.data == gradient_two.data);
      for (std::int64_t i = 0; i < m * c; ++i) {
        const std::int64_t token = first_row + i / c, position = token % sequence, channel = i % c;
        double mask = 1;
        if (p > 0) {
          const bool kept =
              philox_u32(dropout.key, RandomDomain::dropout, 21 + static_cast<std::uint64_t>(token / sequence),
                         static_cast<std::uint32_t>(position),
                         static_cast<std::uint64_t>(channel)) >= dropout_threshold(p);
          mask = kept ? 1 / (1 - p) : 0;
        }
        const double sum = static_cast<double>(x[i]) + positions[position * c + channel];
        REQUIRE(std::abs(y[i] - mask * sum) <= tolerance);
        REQUIRE(std::abs(dx[i] - mask * dy[i]) <= tolerance);
        expected[position * c + channel] += dx[i];
      }
      double worst = 0;
      for (std::int64_t i = 0; i < expected.shape.num_elems(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(expected[i] - gradient[i])));
      }
      CHECK(worst <= 4 * tolerance);  // a product and a sum may be rounded once
    }
  }
}

TEMPLATE_TEST_CASE("16-bit embeddings are those of their values in fp32, rounded at the end", "[kernels][embedding]",
                   BFloat16, Float16) {
  const std::int64_t m = 60, vocabulary = 11, c = 33, sequence = 15;
  const auto tokens = random_tokens(m, vocabulary);
  const auto stored = [](const HostTensor<float>& values) {
    HostTensor<TestType> out(values.shape, TestType{});
    for (std::size_t i = 0; i < out.data.size(); ++i) out.data[i] = TestType(values.data[i]);
    return out;
  };
  const auto wide = [](const HostTensor<TestType>& values) {
    HostTensor<float> out(values.shape);
    for (std::size_t i = 0; i < out.data.size(); ++i) out.data[i] = static_cast<float>(values.data[i]);
    return out;
  };
  const Dropout dropout{0.25, philox_key(5, "embedding")};
  const TokenRows rows{21, sequence, 4};
  const auto weight = stored(random_tensor<float>({vocabulary, c}, 1));
  const auto positions = stored(random_tensor<float>({sequence + 2, c}, 2));
  const auto dy = stored(random_tensor<float>({m, c}, 3));
  const auto weight_wide = wide(weight), positions_wide = wide(positions), dy_wide = wide(dy);
  HostTensor<TestType> x({m, c}, TestType{}), dx = dy;
  HostTensor<float> x_wide({m, c}), dx_wide({m, c});
  HostTensor<float> dw({vocabulary, c}, 1), dp({sequence + 2, c}, 1), dw_wide = dw, dp_wide = dp;
  Stream stream = cpu_stream(2);
  embedding_forward(tokens.view(), weight.view(), 2, x.view(), stream);
  embedding_forward(tokens.view(), weight_wide.view(), 2, x_wide.view(), stream);
  CHECK(wide(x).data == x_wide.data);
  position_dropout_forward(x.view(), positions.view(), x.view(), dropout, rows, stream);
  position_dropout_forward(x_wide.view(), positions_wide.view(), x_wide.view(), dropout, rows, stream);
  CHECK(wide(x).data == wide(stored(x_wide)).data);
  embedding_backward(tokens.view(), dy.view(), 2, dw.view(), stream);
  embedding_backward(tokens.view(), dy_wide.view(), 2, dw_wide.view(), stream);
  CHECK(dw.data == dw_wide.data);
  position_dropout_backward(dx.view(), dx.view(), dp.view(), dropout, rows, stream);
  position_dropout_backward(dy_wide.view(), dx_wide.view(), dp_wide.view(), dropout, rows, stream);
  CHECK(dp.data == dp_wide.data);
  CHECK(wide(dx).data == wide(stored(dx_wide)).data);
  CHECK_THROWS_AS(
      embedding_backward(tokens.view(), dy.view(), 0, HostTensor<TestType>({vocabulary, c}, TestType{}).view(), stream),
      Error);
}

TEST_CASE("embeddings refuse what does not fit", "[kernels][embedding]") {
  HostTensor<std::int32_t> tokens({4});
  HostTensor<float> x({4, 8}), positions({5, 8}), narrow({5, 7});
  Stream stream = cpu_stream();
  CHECK_THROWS_AS(embedding_forward(tokens.view(), narrow.view(), 0, x.view(), stream), Error);
  CHECK_THROWS_AS(embedding_forward(x.view().rows(0, 0), positions.view(), 0, x.view(), stream), Error);
  CHECK_THROWS_AS(position_dropout_forward(x.view(), positions.view(), x.view(), {}, {0, 6, 0}, stream), Error);
}
