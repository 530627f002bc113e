// 16-bit tensors on the CPU: a kernel must give what the same kernel gives in float on the widened inputs, rounded
// once.
#include <cmath>

#include "potato/kernels/activation.hpp"
#include "potato/kernels/dropout.hpp"
#include "potato/kernels/elementwise.hpp"
#include "potato/kernels/layernorm.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

constexpr double eps = 1e-5;
const Dropout dropout{0.25, philox_key(11, "layer.3.mlp")};
const TokenRows rows{7, 5, 2};

template <typename S>
HostTensor<S> rounded(const HostTensor<float>& x) {
  HostTensor<S> out(x.shape, S(0));
  for (std::size_t i = 0; i < x.data.size(); ++i) out.data[i] = S(x.data[i]);
  return out;
}

template <typename S>
HostTensor<float> widened(const HostTensor<S>& x) {
  HostTensor<float> out(x.shape);
  for (std::size_t i = 0; i < x.data.size(); ++i) out.data[i] = static_cast<float>(x.data[i]);
  return out;
}

// A tensor in S and the same values in float.
template <typename S>
struct Both {
  HostTensor<S> half;
  HostTensor<float> wide;

  Both(Shape shape, unsigned seed, double scale = 1)
      : half(rounded<S>(random_tensor<float>(shape, seed, scale))), wide(widened(half)) {}
  // Whether `half` holds `wide`, rounded.
  bool agrees() const { return widened(half).data == widened(rounded<S>(wide)).data; }
};

}  // namespace

TEMPLATE_TEST_CASE("flat operations take 16-bit tensors", "[kernels][half]", BFloat16, Float16) {
  using S = TestType;
  Stream stream = cpu_stream(2);
  for (const std::int64_t n : {1, 33, 70001}) {
    Both<S> x({n}, 1), y({n}, 2), filled({n}, 3), copied({n}, 4);
    HostTensor<float> wide({n}, -1.0F);
    HostTensor<double> norm({1}, 1), wide_norm({1}, 1);
    add_to(x.half.view(), y.half.view(), stream);
    add_to(x.wide.view(), y.wide.view(), stream);
    CHECK(y.agrees());
    fill(filled.half.view(), 1.7, stream);
    fill(filled.wide.view(), 1.7, stream);
    CHECK(filled.agrees());
    copy(x.half.view(), copied.half.view(), stream);
    CHECK(widened(copied.half).data == x.wide.data);
    convert(x.half.view(), wide.view(), stream);
    CHECK(wide.data == x.wide.data);
    add_squared_norm(x.half.view(), 2, norm.view(), stream);
    add_squared_norm(x.wide.view(), 2, wide_norm.view(), stream);
    CHECK(norm.data == wide_norm.data);
  }
}

TEST_CASE("convert rounds to nearest even and refuses fp64 to 16 bits", "[kernels][half]") {
  Stream stream = cpu_stream();
  HostTensor<float> x({6});
  x.data = {1 + 0x1p-8F, 1 + 0x3p-8F, 1 + 0x1p-11F, 1 + 0x3p-11F, -2.5F, 0x1p-24F};
  HostTensor<BFloat16> b({6}, BFloat16(0));
  HostTensor<Float16> h({6}, Float16(0));
  convert(x.view(), b.view(), stream);
  convert(x.view(), h.view(), stream);
  CHECK(widened(b).data == std::vector<float>{1, 1 + 0x1p-6F, 1, 1, -2.5F, 0x1p-24F});
  CHECK(widened(h).data == std::vector<float>{1 + 0x1p-8F, 1 + 0x3p-8F, 1, 1 + 0x1p-9F, -2.5F, 0x1p-24F});
  HostTensor<Float16> from_bf16({6}, Float16(0));
  convert(b.view(), from_bf16.view(), stream);
  CHECK(widened(from_bf16).data == widened(b).data);
  HostTensor<double> wide({6});
  HostTensor<float> back({6});
  convert(x.view(), wide.view(), stream);
  convert(wide.view(), back.view(), stream);
  CHECK(back.data == x.data);
  CHECK_THROWS_AS(convert(wide.view(), h.view(), stream), Error);
  CHECK_THROWS_AS(convert(b.view(), wide.view(), stream), Error);
}

TEMPLATE_TEST_CASE("biases and gelu take 16-bit tensors", "[kernels][half]", BFloat16, Float16) {
  using S = TestType;
  const std::int64_t m = 19, n = 131;
  Stream stream = cpu_stream(2);
  Both<S> x({m, n}, 1, 4), bias({n}, 2), y({m, n}, 3), dy({m, n}, 4), dx({m, n}, 5);
  HostTensor<float> db = random_tensor<float>({n}, 6), wide_db = db, sums = db, wide_sums = db;
  bias_gelu_forward(x.half.view(), bias.half.view(), y.half.view(), stream);
  add_bias(x.wide.view(), bias.wide.view(), stream);
  CHECK(x.agrees());
  x.wide = widened(x.half);
  gelu_forward(x.wide.view(), y.wide.view(), stream);
  CHECK(y.agrees());
  Both<S> again({m, n}, 7);
  gelu_forward(x.half.view(), again.half.view(), stream);
  CHECK(widened(again.half).data == widened(y.half).data);
  gelu_bias_backward(dy.half.view(), x.half.view(), dx.half.view(), db.view(), stream);
  gelu_bias_backward(dy.wide.view(), x.wide.view(), dx.wide.view(), wide_db.view(), stream);
  CHECK(dx.agrees());
  CHECK(db.data == wide_db.data);
  bias_backward(dy.half.view(), sums.view(), stream);
  bias_backward(dy.wide.view(), wide_sums.view(), stream);
  CHECK(sums.data == wide_sums.data);
  CHECK_THROWS_AS(bias_backward(dy.half.view(), bias.half.view(), stream), Error);  // gradients are fp32
}

TEMPLATE_TEST_CASE("the end of a branch takes 16-bit tensors", "[kernels][half]", BFloat16, Float16) {
  using S = TestType;
  const std::int64_t m = 23, c = 131;
  Stream stream = cpu_stream(2);
  Both<S> x({m, c}, 1), bias({c}, 2), residual({m, c}, 3), y({m, c}, 4), dy({m, c}, 5), dx({m, c}, 6);
  HostTensor<float> db = random_tensor<float>({c}, 7), wide_db = db;
  bias_dropout_add_forward(x.half.view(), bias.half.view(), residual.half.view(), y.half.view(), dropout, rows, stream);
  bias_dropout_add_forward(x.wide.view(), bias.wide.view(), residual.wide.view(), y.wide.view(), dropout, rows, stream);
  CHECK(y.agrees());
  bias_dropout_add_forward(x.half.view(), bias.half.view(), residual.half.view(), x.half.view(), dropout, rows, stream);
  CHECK(widened(x.half).data == widened(y.half).data);
  bias_dropout_add_backward(dy.half.view(), dx.half.view(), db.view(), dropout, rows, stream);
  bias_dropout_add_backward(dy.wide.view(), dx.wide.view(), wide_db.view(), dropout, rows, stream);
  CHECK(dx.agrees());
  CHECK(db.data == wide_db.data);
}

TEMPLATE_TEST_CASE("layernorm takes 16-bit tensors", "[kernels][half]", BFloat16, Float16) {
  using S = TestType;
  const std::int64_t m = 23, c = 131;
  Stream stream = cpu_stream(2);
  Both<S> x({m, c}, 1, 2), w({c}, 2), b({c}, 3), y({m, c}, 4), dy({m, c}, 5), residual({m, c}, 6), dx({m, c}, 7);
  HostTensor<float> mean({m}), rstd({m}), wide_mean({m}), wide_rstd({m}), dw = random_tensor<float>({c}, 8), db = dw,
                                                                          wide_dw = dw, wide_db = dw;
  layernorm_forward(x.half.view(), w.half.view(), b.half.view(), eps, y.half.view(), mean.view(), rstd.view(), stream);
  layernorm_forward(x.wide.view(), w.wide.view(), b.wide.view(), eps, y.wide.view(), wide_mean.view(), wide_rstd.view(),
                    stream);
  CHECK(y.agrees());
  CHECK(mean.data == wide_mean.data);
  CHECK(rstd.data == wide_rstd.data);
  Both<S> again({m, c}, 9);
  layernorm_apply(x.half.view(), w.half.view(), b.half.view(), mean.view(), rstd.view(), again.half.view(), stream);
  CHECK(widened(again.half).data == widened(y.half).data);
  layernorm_backward(dy.half.view(), x.half.view(), w.half.view(), mean.view(), rstd.view(), residual.half.view(),
                     residual.half.view(), dw.view(), db.view(), stream);
  layernorm_backward(dy.wide.view(), x.wide.view(), w.wide.view(), mean.view(), rstd.view(), residual.wide.view(),
                     residual.wide.view(), wide_dw.view(), wide_db.view(), stream);
  CHECK(residual.agrees());
  CHECK(dw.data == wide_dw.data);
  CHECK(db.data == wide_db.data);
  HostTensor<S> half_mean({m}, S(0));
  CHECK_THROWS_AS(layernorm_forward(x.half.view(), w.half.view(), b.half.view(), eps, y.half.view(), half_mean.view(),
                                    rstd.view(), stream),
                  Error);
}

TEMPLATE_TEST_CASE("the end of a branch with the norm behind it is bitwise the two operations", "[kernels][half]",
                   BFloat16, Float16, float, double) {
  using S = TestType;
  using C = Compute<S>;
  const std::int64_t m = 23, c = 131;
  const auto make = [](Shape shape, unsigned seed) {
    HostTensor<S> out(shape, S(0));
    const auto values = random_tensor<double>(shape, seed);
    for (std::size_t i = 0; i < out.data.size(); ++i) out.data[i] = S(static_cast<C>(values.data[i]));
    return out;
  };
  const auto same = [](const HostTensor<S>& a, const HostTensor<S>& b) {
    bool equal = a.shape == b.shape;
    for (std::size_t i = 0; i < a.data.size(); ++i) {
      equal = equal && static_cast<C>(a.data[i]) == static_cast<C>(b.data[i]);
    }
    return equal;
  };
  for (const double p : {0.0, 0.25}) {
    Stream stream = cpu_stream(2);
    const Dropout drop{p, dropout.key};
    auto x = make({m, c}, 1), bias = make({c}, 2), residual = make({m, c}, 3), w = make({c}, 4), b = make({c}, 5);
    auto sum = make({m, c}, 6), y = make({m, c}, 7), fused_sum = make({m, c}, 8), fused_y = make({m, c}, 9);
    HostTensor<C> mean({m}), rstd({m}), fused_mean({m}), fused_rstd({m});
    bias_dropout_add_forward(x.view(), bias.view(), residual.view(), sum.view(), drop, rows, stream);
    layernorm_forward(sum.view(), w.view(), b.view(), eps, y.view(), mean.view(), rstd.view(), stream);
    bias_dropout_add_layernorm_forward(x.view(), bias.view(), residual.view(), fused_sum.view(), drop, rows, w.view(),
                                       b.view(), eps, fused_y.view(), fused_mean.view(), fused_rstd.view(), stream);
    CHECK(same(fused_sum, sum));
    CHECK(same(fused_y, y));
    CHECK(fused_mean.data == mean.data);
    CHECK(fused_rstd.data == rstd.data);
    bias_dropout_add_layernorm_forward(x.view(), bias.view(), residual.view(), residual.view(), drop, rows, w.view(),
                                       b.view(), eps, fused_y.view(), fused_mean.view(), fused_rstd.view(), stream);
    CHECK(same(residual, sum));
    CHECK(same(fused_y, y));
  }
}
