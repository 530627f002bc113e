// Cross-entropy on the GPU against its CPU twin. M rows, V columns.
#include "potato/kernels/cross_entropy.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

struct Sizes {
  std::int64_t m, row_elems, num_columns;
};

// Aligned rows with padding that ends within an access and at one, odd rows, one row, more rows than persistent blocks,
// GPT-2's vocabulary (which takes one block of shared memory in fp32, two in 16 bits), and rows too large for it.
constexpr Sizes sizes[] = {{23, 264, 257},    {37, 256, 256},     {19, 257, 250},     {1, 8, 3},
                           {5, 1, 1},         {7000, 128, 100},   {2500, 1024, 1017}, {300, 50304, 50257},
                           {3, 50257, 50257}, {3, 120000, 119998}};

std::vector<std::int32_t> some_targets(std::int64_t m, std::int64_t num_columns, std::int64_t first_token = 0) {
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < m; ++i) {
    targets.push_back(i % 5 == 2 ? -1 : static_cast<std::int32_t>(first_token + i * 7919 % num_columns));
  }
  return targets;
}

// Logits whose padding is NaN, to be seen wherever it is used.
std::vector<double> some_logits(const Sizes& s) {
  auto values = random_tensor<double>({s.m, s.row_elems}, 11, 6).data;
  for (std::int64_t m = 0; m < s.m; ++m) {
    for (std::int64_t j = s.num_columns; j < s.row_elems; ++j)
      values[static_cast<std::size_t>(m * s.row_elems + j)] = NAN;
  }
  return values;
}

std::string name_of(DType dtype, const Sizes& s) {
  return cat(dtype_name(dtype), ", ", s.m, " rows of ", s.num_columns, " in ", s.row_elems);
}

// The valid columns of logits, so that NaN in the padding does not matter.
std::vector<double> valid_of(const std::vector<double>& values, const Sizes& s) {
  std::vector<double> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (static_cast<std::int64_t>(i) % s.row_elems < s.num_columns) out.push_back(values[i]);
  }
  return out;
}

}  // namespace

TEST_CASE("the steps of sharded cross-entropy", "[gpu][kernel]") {
  for (const DType dtype : gpu_dtypes) {
    for (const Sizes& s : sizes) {
      Gpu on;
      Stream cpu = twin_stream();
      INFO(name_of(dtype, s));
      const std::int64_t first = 1000;
      auto ids = some_targets(s.m, s.num_columns, first);
      ids[0] = 5;  // a token of another shard
      IntTwin targets(on, ids);
      Twin logits(on, dtype, {s.m, s.row_elems}, some_logits(s)), again(on, dtype, {s.m, s.row_elems}, some_logits(s));
      Twin row_max(on, DType::f32, {s.m}, 1, 1e30), sums(on, DType::f32, {2, s.m}, 2, 1e30);
      Twin loss(on, DType::f64, {1}, std::vector<double>{0.5});
      cross_entropy_max(logits.host(), s.num_columns, row_max.host(), cpu);
      cross_entropy_max(logits.device(), s.num_columns, row_max.device(), on.stream);
      CHECK(row_max.device_values() == row_max.host_values());
      cross_entropy_sums(logits.host(), s.num_columns, first, targets.host(), row_max.host(), sums.host(), cpu);
      cross_entropy_sums(logits.device(), s.num_columns, first, targets.device(), row_max.device(), sums.device(),
                         on.stream);
      CHECK(sums.distance() <= tolerance(DType::f32));
      cross_entropy_loss(sums.host(), targets.host(), loss.host(), cpu);
      cross_entropy_loss(sums.device(), targets.device(), loss.device(), on.stream);
      CHECK(loss.distance() <= tolerance(DType::f32));
      cross_entropy_backward(logits.host(), s.num_columns, first, targets.host(), row_max.host(), sums.host(), 0.25,
                             cpu);
      for (Twin* twin : {&logits, &again}) {
        cross_entropy_backward(twin->device(), s.num_columns, first, targets.device(), row_max.device(), sums.device(),
                               0.25, on.stream);
      }
      CHECK(logits.distance() <= tolerance(dtype));
      CHECK(logits.device_values() == again.device_values());
    }
  }
}

TEST_CASE("a shard that holds only padding", "[gpu][kernel]") {
  Gpu on;
  Stream cpu = twin_stream();
  const Sizes s{9, 16, 0};
  IntTwin targets(on, some_targets(s.m, 100));
  Twin logits(on, DType::bf16, {s.m, s.row_elems}, some_logits(s)), row_max(on, DType::f32, {s.m}, 1),
      sums(on, DType::f32, {2, s.m}, 2);
  cross_entropy_max(logits.host(), 0, row_max.host(), cpu);
  cross_entropy_max(logits.device(), 0, row_max.device(), on.stream);
  CHECK(row_max.device_values() == row_max.host_values());
  row_max.set(std::vector<double>(9, 1.5));
  cross_entropy_sums(logits.device(), 0, 200, targets.device(), row_max.device(), sums.device(), on.stream);
  CHECK(sums.device_values() == std::vector<double>(18, 0));
  sums.set(std::vector<double>(18, 2));
  cross_entropy_backward(logits.device(), 0, 200, targets.device(), row_max.device(), sums.device(), 1, on.stream);
  CHECK(logits.device_values() == std::vector<double>(144, 0));
}

TEST_CASE("fused cross-entropy", "[gpu][kernel]") {
  for (const DType dtype : gpu_dtypes) {
    for (const Sizes& s : sizes) {
      Gpu on;
      Stream cpu = twin_stream();
      INFO(name_of(dtype, s));
      IntTwin targets(on, some_targets(s.m, s.num_columns));
      const auto values = some_logits(s);
      Twin logits(on, dtype, {s.m, s.row_elems}, values), again(on, dtype, {s.m, s.row_elems}, values);
      Twin losses(on, DType::f32, {s.m}, 1, 1e30), losses_again(on, DType::f32, {s.m}, 2, 1e30);
      Twin loss(on, DType::f64, {1}, std::vector<double>{0.5}),
          loss_again(on, DType::f64, {1}, std::vector<double>{0.5});
      const auto before = valid_of(logits.host_values(), s);

      cross_entropy_fused(logits.host(), s.num_columns, targets.host(), 0.25, false, losses.host(), loss.host(), cpu);
      cross_entropy_fused(logits.device(), s.num_columns, targets.device(), 0.25, false, losses.device(), loss.device(),
                          on.stream);
      CHECK(valid_of(logits.device_values(), s) == before);
      CHECK(losses.distance() <= tolerance(DType::f32));
      CHECK(loss.distance() <= tolerance(DType::f32));

      loss.set({0.5});
      cross_entropy_fused(logits.host(), s.num_columns, targets.host(), 0.25, true, losses.host(), loss.host(), cpu);
      cross_entropy_fused(logits.device(), s.num_columns, targets.device(), 0.25, true, losses.device(), loss.device(),
                          on.stream);
      cross_entropy_fused(again.device(), s.num_columns, targets.device(), 0.25, true, losses_again.device(),
                          loss_again.device(), on.stream);
      CHECK(losses.distance() <= tolerance(DType::f32));
      CHECK(loss.distance() <= tolerance(DType::f32));
      CHECK(logits.distance() <= tolerance(dtype));
      CHECK(logits.device_values() == again.device_values());
      CHECK(losses.device_values() == losses_again.device_values());
      CHECK(loss.device_values() == loss_again.device_values());
      const auto gradient = logits.device_values();
      bool all_zero = true;  // uncounted rows and padding, exactly
      for (std::int64_t i = 0; i < s.m * s.row_elems; ++i) {
        const bool is_counted = i / s.row_elems % 5 != 2 && i % s.row_elems < s.num_columns;
        all_zero = all_zero && (is_counted || gradient[static_cast<std::size_t>(i)] == 0);
      }
      CHECK(all_zero);
    }
  }
}

TEST_CASE("cross-entropy of extreme logits on the GPU is finite", "[gpu][kernel]") {
  for (const DType dtype : gpu_dtypes) {
    for (const std::int64_t v : {40, 41}) {
      Gpu on;
      Stream cpu = twin_stream();
      std::vector<double> values(static_cast<std::size_t>(3 * v), -1e4);
      values[7] = values[static_cast<std::size_t>(v + 3)] = 1e4;
      std::fill(values.begin() + 2 * v, values.end(), 1e4);
      Twin logits(on, dtype, {3, v}, values), losses(on, DType::f32, {3}, 1);
      Twin loss(on, DType::f64, {1}, std::vector<double>{0});
      IntTwin targets(on, {7, 7, 7});
      cross_entropy_fused(logits.host(), v, targets.host(), 1, true, losses.host(), loss.host(), cpu);
      cross_entropy_fused(logits.device(), v, targets.device(), 1, true, losses.device(), loss.device(), on.stream);
      CHECK(logits.distance() <= tolerance(dtype));
      CHECK(losses.distance() <= tolerance(DType::f32));
    }
  }
}
