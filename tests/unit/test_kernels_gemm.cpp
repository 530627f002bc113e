#include <cmath>
#include <limits>

#include "potato/kernels/gemm.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

namespace {

template <typename T>
HostTensor<T> transposed(const HostTensor<T>& in) {
  HostTensor<T> out({in.shape[1], in.shape[0]});
  for (std::int64_t i = 0; i < in.shape[0]; ++i) {
    for (std::int64_t j = 0; j < in.shape[1]; ++j) out[j * in.shape[0] + i] = in[i * in.shape[1] + j];
  }
  return out;
}

// Columns [begin, begin + count).
template <typename T>
HostTensor<T> columns(const HostTensor<T>& in, std::int64_t begin, std::int64_t count) {
  HostTensor<T> out({in.shape[0], count});
  for (std::int64_t i = 0; i < in.shape[0]; ++i) {
    for (std::int64_t j = 0; j < count; ++j) out[i * count + j] = in[i * in.shape[1] + begin + j];
  }
  return out;
}

// a [M, K] · b [K, N], stored transposed where asked.
template <typename T>
HostTensor<T> product(const HostTensor<T>& a, const HostTensor<T>& b, bool transpose_a = false,
                      bool transpose_b = false, int threads = 1) {
  HostTensor<T> c({a.shape[0], b.shape[1]});
  const HostTensor<T> stored_a = transpose_a ? transposed(a) : a;
  const HostTensor<T> stored_b = transpose_b ? transposed(b) : b;
  Stream stream = cpu_stream(threads);
  gemm(stored_a.view(), transpose_a, stored_b.view(), transpose_b, c.view(), 1, 0, stream);
  stream.synchronize();
  return c;
}

template <typename T>
void check_against_naive(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, double beta) {
  const auto a = random_tensor<T>({m, k}, 1);
  const auto b = random_tensor<T>({k, n}, 2);
  const auto old = random_tensor<T>({m, n}, 3);
  for (int transposes = 0; transposes < 4; ++transposes) {
    const bool ta = transposes & 1, tb = transposes & 2;
    auto c = old;
    if (beta == 0) std::fill(c.data.begin(), c.data.end(), std::numeric_limits<T>::quiet_NaN());
    const auto stored_a = ta ? transposed(a) : a;
    const auto stored_b = tb ? transposed(b) : b;
    Stream stream = cpu_stream();
    gemm(stored_a.view(), ta, stored_b.view(), tb, c.view(), alpha, beta, stream);
    stream.synchronize();
    CHECK(stream.costs().flops == 2.0 * static_cast<double>(m * n * k));
    double worst = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) sum += static_cast<double>(a[i * k + l]) * b[l * n + j];
        const double expected = alpha * sum + (beta == 0 ? 0 : beta * old[i * n + j]);
        const double error = std::abs(c[i * n + j] - expected);
        worst = error <= worst ? worst : error;  // keeps a NaN
      }
    }
    INFO("M " << m << " N " << n << " K " << k << " transposes " << transposes);
    CHECK(worst <= std::numeric_limits<T>::epsilon() * 4 * static_cast<double>(k + 1));
  }
}

template <typename T>
void check_sizes() {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {6, 8, 5}, {7, 9, 3}, {17, 33, 65}, {125, 67, 31}, {3, 130, 2}, {64, 1, 64}, {5, 7, 0}}) {
    check_against_naive<T>(m, n, k, 1, 0);
    check_against_naive<T>(m, n, k, -0.5, 1);
    check_against_naive<T>(m, n, k, 2, 0.25);
  }
}

}  // namespace

TEST_CASE("gemm equals the naive product for all transposes", "[gemm]") {
  SECTION("fp32") { check_sizes<float>(); }
  SECTION("fp64") { check_sizes<double>(); }
}

TEST_CASE("gemm without elements does nothing", "[gemm]") {
  Stream stream = cpu_stream();
  HostTensor<double> a({0, 3}), b({3, 4}), c({0, 4});
  gemm(a.view(), false, b.view(), false, c.view(), 1, 0, stream);
  HostTensor<float> d({4, 3}), e({3, 0}), f({4, 0});
  gemm(d.view(), false, e.view(), false, f.view(), 1, 1, stream);
  stream.synchronize();
  CHECK(stream.costs().flops == 0);
}

TEST_CASE("gemm refuses shapes and dtypes that do not match", "[gemm]") {
  Stream stream = cpu_stream();
  HostTensor<double> a({2, 3}), b({3, 4}), c({2, 4}), wrong({4, 2});
  HostTensor<float> other({3, 4});
  CHECK_THROWS_AS(gemm(a.view(), true, b.view(), false, c.view(), 1, 0, stream), Error);
  CHECK_THROWS_AS(gemm(a.view(), false, b.view(), true, c.view(), 1, 0, stream), Error);
  CHECK_THROWS_AS(gemm(a.view(), false, b.view(), false, wrong.view(), 1, 0, stream), Error);
  CHECK_THROWS_AS(gemm(a.view(), false, other.view(), false, c.view(), 1, 0, stream), Error);
}

TEST_CASE("fp64 gemm is bitwise the same for any split, transpose and number of threads", "[gemm]") {
  const auto a = random_tensor<double>({131, 77}, 4);
  const auto b = random_tensor<double>({77, 141}, 5);
  const auto whole = product(a, b);
  for (int transposes = 1; transposes < 4; ++transposes) {
    CHECK(product(a, b, transposes & 1, transposes & 2).data == whole.data);
  }
  CHECK(product(a, b, false, true, 2).data == whole.data);
  for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {3, 67}, {65, 76}}) {
    CHECK(product(a, columns(b, begin, count)).data == columns(whole, begin, count).data);
    const auto rows = transposed(columns(transposed(a), begin, std::min<std::int64_t>(count, 131 - begin)));
    const auto rows_of_whole =
        transposed(columns(transposed(whole), begin, std::min<std::int64_t>(count, 131 - begin)));
    CHECK(product(rows, b).data == rows_of_whole.data);
  }
}

TEST_CASE("fp32 gemm is bitwise the same for splits of N, rows from 16 on, and threads", "[gemm]") {
  const auto a = random_tensor<float>({64, 96}, 6);
  const auto b = random_tensor<float>({96, 128}, 7);
  const auto whole = product(a, b, false, true);
  CHECK(product(a, b, false, true).data == whole.data);
  CHECK(product(a, b, false, true, 2).data == whole.data);
  for (const std::int64_t begin : {0, 32, 96}) {
    CHECK(product(a, columns(b, begin, 32), false, true).data == columns(whole, begin, 32).data);
  }
  for (const std::int64_t begin : {0, 16, 48}) {
    const auto rows = transposed(columns(transposed(a), begin, 16));
    CHECK(product(rows, b, false, true).data == transposed(columns(transposed(whole), begin, 16)).data);
  }
}
