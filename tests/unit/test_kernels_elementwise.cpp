#include <cmath>

#include "potato/kernels/elementwise.hpp"
#include "support/catch.hpp"
#include "support/host_matrix.hpp"

using namespace potato;
using namespace potato::test;

TEMPLATE_TEST_CASE("fill, copy and add_to do each element once", "[kernels][elementwise]", float, double) {
  for (const std::int64_t n : {0, 1, 3, 7, 33, 257, 65536, 300001}) {
    for (const int threads : {1, 2}) {
      Stream stream = cpu_stream(threads);
      const auto x = random_tensor<TestType>({n}, 1), start = random_tensor<TestType>({n}, 2);
      HostTensor<TestType> filled({n}), copied({n});
      auto sum = start, expected = start;
      fill(filled.view(), 2.5, stream);
      copy(x.view(), copied.view(), stream);
      add_to(x.view(), sum.view(), stream);
      stream.synchronize();
      for (std::int64_t i = 0; i < n; ++i) expected[i] += x[i];
      CHECK(filled.data == std::vector<TestType>(static_cast<std::size_t>(n), TestType(2.5)));
      CHECK(copied.data == x.data);
      CHECK(sum.data == expected.data);
    }
  }
}

TEST_CASE("copy takes any dtype and another shape of as many elements", "[kernels][elementwise]") {
  HostTensor<std::int32_t> from({2, 3}), to({6});
  from.data = {1, 2, 3, 4, 5, 6};
  Stream stream = cpu_stream();
  copy(from.view(), to.view(), stream);
  CHECK(to.data == from.data);
  HostTensor<float> other({6}), shorter({5});
  CHECK_THROWS_AS(copy(from.view(), other.view(), stream), Error);
  CHECK_THROWS_AS(copy(other.view(), shorter.view(), stream), Error);
  CHECK_THROWS_AS(fill(from.view(), 0, stream), Error);
}

TEMPLATE_TEST_CASE("add_squared_norm is exact on integers and adds its weighted sum", "[kernels][elementwise]", float,
                   double) {
  // More than one group of 256 blocks of 16,384 elements at the end.
  for (const std::int64_t n : {0, 1, 31, 32, 33, 16384, 16385, 100003, 4300007}) {
    HostTensor<TestType> x({n});
    double expected = 10;
    for (std::int64_t i = 0; i < n; ++i) {
      x[i] = static_cast<TestType>(i % 7 - 3);
      expected += 2 * static_cast<double>(x[i]) * x[i];
    }
    for (const int threads : {1, 2}) {
      HostTensor<double> result({1}, 10);
      Stream stream = cpu_stream(threads);
      add_squared_norm(x.view(), 2, result.view(), stream);
      stream.synchronize();
      CAPTURE(n, threads);
      CHECK(result[0] == expected);
    }
  }
}

TEMPLATE_TEST_CASE("add_squared_norm is bitwise the same for 1 and 2 threads", "[kernels][elementwise]", float,
                   double) {
  const auto x = random_tensor<TestType>({1000003}, 5, 1e-4);
  HostTensor<double> one({1}), two({1});
  Stream stream = cpu_stream(1), two_threads = cpu_stream(2);
  add_squared_norm(x.view(), 1, one.view(), stream);
  add_squared_norm(x.view(), 1, two.view(), two_threads);
  CHECK(one.data == two.data);
  long double sum = 0;
  for (const TestType value : x.data) sum += static_cast<long double>(value) * value;
  CHECK(std::abs(one[0] / static_cast<double>(sum) - 1) < 1e-14);
}
