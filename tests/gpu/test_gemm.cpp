// Products on the GPU against the CPU twin on the same stored inputs.
#include "potato/kernels/gemm.hpp"
#include "potato/kernels/linear.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

struct Sizes {
  std::int64_t m, n, k;
};

// Sums of k products of random signs are about sqrt(k) large, their rounding errors relative to that: the table holds.
constexpr Sizes sizes[] = {{64, 48, 80}, {1, 257, 33}, {130, 7, 65}, {512, 768, 256}};

}  // namespace

TEST_CASE("products in every orientation and dtype", "[gpu]") {
  for (const DType dtype : gpu_dtypes) {
    for (const Sizes& s : sizes) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          for (const DType out : {dtype, compute_dtype(dtype)}) {
            for (const double beta : {0.0, 1.0}) {
              Gpu on;
              Stream cpu = twin_stream();
              Twin a(on, dtype, ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1);
              Twin b(on, dtype, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2);
              Twin c(on, out, {s.m, s.n}, 3, beta == 0 ? 1e30 : 1);
              gemm(a.host(), ta, b.host(), tb, c.host(), 1, beta, cpu);
              gemm(a.device(), ta, b.device(), tb, c.device(), 1, beta, on.stream);
              INFO(dtype_name(dtype) << " into " << dtype_name(out) << ", " << s.m << "x" << s.n << "x" << s.k << ", "
                                     << ta << tb << ", beta " << beta);
              CHECK(c.distance() <= tolerance(out));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("linear layers with bias and GELU in the product", "[gpu]") {
  for (const DType dtype : gpu_dtypes) {
    for (const Sizes& s : {Sizes{128, 256, 64}, Sizes{33, 72, 40}, Sizes{5, 3, 7}}) {
      Gpu on;
      Stream cpu = twin_stream();
      INFO(dtype_name(dtype) << ", " << s.m << "x" << s.n << "x" << s.k);
      Twin x(on, dtype, {s.m, s.k}, 1), weight(on, dtype, {s.n, s.k}, 2, 0.3), bias(on, dtype, {s.n}, 3);
      Twin y(on, dtype, {s.m, s.n}, 4), pre(on, dtype, {s.m, s.n}, 5), dy(on, dtype, {s.m, s.k}, 6);
      Twin down(on, dtype, {s.k, s.n}, 7, 0.3), dpre(on, dtype, {s.m, s.n}, 8), db(on, DType::f32, {s.n}, 9);
      linear_bias(x.host(), weight.host(), bias.host(), y.host(), cpu);
      linear_bias(x.device(), weight.device(), bias.device(), y.device(), on.stream);
      CHECK(y.distance() <= tolerance(dtype));
      linear_bias_gelu(x.host(), weight.host(), bias.host(), pre.host(), y.host(), cpu);
      linear_bias_gelu(x.device(), weight.device(), bias.device(), pre.device(), y.device(), on.stream);
      CHECK(pre.distance() <= tolerance(dtype));
      CHECK(y.distance() <= 2 * tolerance(dtype));  // two roundings on one side
      pre.set(pre.host_values());
      linear_gelu_backward(dy.host(), down.host(), pre.host(), dpre.host(), db.host(), cpu);
      linear_gelu_backward(dy.device(), down.device(), pre.device(), dpre.device(), db.device(), on.stream);
      CHECK(dpre.distance() <= 2 * tolerance(dtype));
      CHECK(db.distance() <= 2 * tolerance(dtype));
    }
  }
}

TEST_CASE("a product repeats bitwise", "[gpu]") {
  Gpu on;
  Twin a(on, DType::bf16, {1024, 4096}, 1), b(on, DType::bf16, {4096, 256}, 2), c(on, DType::f32, {1024, 256}, 3);
  gemm(a.device(), false, b.device(), false, c.device(), 1, 0, on.stream);
  const auto first = c.device_values();
  gemm(a.device(), false, b.device(), false, c.device(), 1, 0, on.stream);
  CHECK(c.device_values() == first);
}
