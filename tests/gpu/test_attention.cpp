// The attention kernels against their CPU twin. Letters: B batch, T sequence, H query heads, K key/value heads, D
// width.
#include <cmath>
#include <cstring>

#include "potato/kernels/attention.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

struct Case {
  std::int64_t batch, sequence, heads, kv_heads, width;
  bool causal = true;
  double p = 0;
  std::int64_t first_head = 0;
};

std::vector<double> values_nan(std::int64_t count) { return std::vector<double>(static_cast<std::size_t>(count), NAN); }

// All tensors of one call, on host and device.
struct Tensors {
  AttentionShape shape;
  Dropout dropout;
  TokenRows rows;
  DType stat;
  Shape qkv_shape, y_shape, stat_shape;
  Twin qkv, dy, y, lse, dqkv, scratch;

  Tensors(Gpu& gpu_, DType dtype, const Case& c, double scale)
      : shape{c.batch,
              c.sequence,
              c.heads,
              c.kv_heads,
              c.width,
              c.causal,
              1 / std::sqrt(static_cast<double>(c.width)),
              c.first_head,
              AttentionKernel::own},
        dropout{c.p, philox_key(5, "layers.3.attention")},
        rows{(std::uint64_t{1} << 33) + 7, c.sequence, 0},
        stat(compute_dtype(dtype)),
        qkv_shape{c.batch * c.sequence, (c.heads + 2 * c.kv_heads) * c.width},
        y_shape{c.batch * c.sequence, c.heads * c.width},
        stat_shape{c.batch, c.heads, c.sequence},
        qkv(gpu_, dtype, qkv_shape, 41, scale),
        dy(gpu_, dtype, y_shape, 42),
        y(gpu_, dtype, y_shape, values_nan(y_shape.num_elems())),
        lse(gpu_, stat, stat_shape, values_nan(stat_shape.num_elems())),
        dqkv(gpu_, dtype, qkv_shape, values_nan(qkv_shape.num_elems())),
        scratch(gpu_, stat, stat_shape, values_nan(stat_shape.num_elems())) {}

  void forward_host() {
    Stream cpu = twin_stream();
    attention_forward(qkv.host(), y.host(), lse.host(), shape, dropout, rows, cpu);
    cpu.synchronize();
  }
  void backward_host() {
    Stream cpu = twin_stream();
    attention_backward(dy.host(), qkv.host(), y.host(), lse.host(), dqkv.host(), scratch.host(), shape, dropout, rows,
                       cpu);
    cpu.synchronize();
  }
  void forward_device(Gpu& on) {
    attention_forward(qkv.device(), y.device(), lse.device(), shape, dropout, rows, on.stream);
  }
  void backward_device(Gpu& on) {
    attention_backward(dy.device(), qkv.device(), y.device(), lse.device(), dqkv.device(), scratch.device(), shape,
                       dropout, rows, on.stream);
  }
};

// Columns [begin, begin + count) of [rows, columns]: ‖a − b‖ / ‖b‖.
double part_distance(const std::vector<double>& a, const std::vector<double>& b, std::int64_t columns,
                     std::int64_t begin, std::int64_t count) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::int64_t column = static_cast<std::int64_t>(i) % columns;
    if (column < begin || column >= begin + count) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return NAN;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

void check_case(Gpu& on, DType dtype, const Case& c) {
  INFO(dtype_name(dtype) << " B " << c.batch << " T " << c.sequence << " H " << c.heads << " K " << c.kv_heads << " D "
                         << c.width << " causal " << c.causal << " p " << c.p);
  Tensors t(on, dtype, c, 2);
  t.forward_host();
  t.forward_device(on);
  const double limit = tolerance(dtype);
  CHECK(t.y.distance() < limit);
  CHECK(t.lse.distance() < tolerance(DType::f32));

  // Both backwards start from the twin's y and lse.
  t.y.set(t.y.host_values());
  t.lse.set(t.lse.host_values());
  t.backward_host();
  t.backward_device(on);
  const std::vector<double> device = t.dqkv.device_values(), host = t.dqkv.host_values();
  const std::int64_t columns = t.qkv_shape[1], q = c.heads * c.width, kv = c.kv_heads * c.width;
  // With one token p = 1 whatever q and k are: their gradients are only rounding errors.
  if (c.sequence > 1) {
    CHECK(part_distance(device, host, columns, 0, q) < limit);
    CHECK(part_distance(device, host, columns, q, kv) < limit);
  }
  CHECK(part_distance(device, host, columns, q + kv, kv) < limit);
  for (const double value : device) REQUIRE(std::isfinite(value));
}

void check_lengths(DType dtype) {
  Gpu on;
  for (const std::int64_t sequence : {1, 2, 15, 16, 31, 33, 63, 64, 65, 127, 128, 129, 192, 257, 515}) {
    for (const bool causal : {true, false}) {
      check_case(on, dtype, {2, sequence, 3, 1, 64, causal});
      check_case(on, dtype, {1, sequence, 2, 2, 128, causal});
    }
  }
}

}  // namespace

TEST_CASE("attention equals its CPU twin for all head widths", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    for (const std::int64_t width : {64, 80, 96, 128, 16, 40, 72, 33, 5, 127}) {
      check_case(on, dtype, {2, 150, 2, 2, width});
      check_case(on, dtype, {1, 67, 4, 2, width, false, 0.2});
    }
    check_case(on, dtype, {1, 100, 2, 1, 256});
    check_case(on, dtype, {1, 70, 2, 2, 130, false, 0.1});
  }
}

// A dtype each, so that a race checker can take them apart.
TEST_CASE("attention equals its CPU twin for all lengths in fp32", "[gpu][kernel]") { check_lengths(DType::f32); }
TEST_CASE("attention equals its CPU twin for all lengths in bf16", "[gpu][kernel]") { check_lengths(DType::bf16); }
TEST_CASE("attention equals its CPU twin for all lengths in fp16", "[gpu][kernel]") { check_lengths(DType::f16); }

TEST_CASE("attention of a large batch equals its CPU twin", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) check_case(on, dtype, {3, 1024, 12, 12, 64});
}

// Channels of a head start at any remainder of 4, at any distance from the first head.
TEST_CASE("attention drops what its CPU twin drops", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    for (const std::int64_t sequence : {64, 65, 66, 131, 200}) {
      for (const std::int64_t width : {64, 128}) {
        check_case(on, dtype, {2, sequence, 4, 4, width, true, 0.1, 3});
        check_case(on, dtype, {2, sequence, 4, 2, width, false, 0.5, 1001});
      }
    }
  }
}

// q = k = 0 makes all probabilities 1 / T, and v = unit vectors shows the mask itself.
TEST_CASE("attention's dropout mask is exact", "[gpu][kernel]") {
  Gpu on;
  const std::int64_t sequence = 64, width = 64;
  for (const DType dtype : gpu_dtypes) {
    Tensors t(on, dtype, {2, sequence, 2, 2, width, false, 0.25}, 1);
    std::vector<double> qkv(static_cast<std::size_t>(t.qkv_shape.num_elems()), 0.0);
    for (std::int64_t row = 0; row < t.qkv_shape[0]; ++row) {
      for (const std::int64_t head : {4, 5}) {
        qkv[static_cast<std::size_t>(row * t.qkv_shape[1] + head * width + row % sequence)] = 1;
      }
    }
    t.qkv.set(qkv);
    t.forward_host();
    t.forward_device(on);
    const auto device = t.y.device_values(), host = t.y.host_values();
    std::int64_t num_wrong = 0;
    for (std::size_t i = 0; i < device.size(); ++i) num_wrong += (device[i] == 0) != (host[i] == 0);
    CHECK(num_wrong == 0);
  }
}

TEST_CASE("attention repeats bitwise", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    Tensors t(on, dtype, {4, 400, 8, 2, 64, true, 0.1}, 1);
    t.forward_device(on);
    t.backward_device(on);
    const auto y = t.y.device_values(), lse = t.lse.device_values(), dqkv = t.dqkv.device_values();
    t.y.set(values_nan(t.y_shape.num_elems()));
    t.lse.set(values_nan(t.stat_shape.num_elems()));
    t.dqkv.set(values_nan(t.qkv_shape.num_elems()));
    t.forward_device(on);
    t.backward_device(on);
    CHECK(std::memcmp(t.y.device_values().data(), y.data(), y.size() * sizeof(double)) == 0);
    CHECK(std::memcmp(t.lse.device_values().data(), lse.data(), lse.size() * sizeof(double)) == 0);
    CHECK(std::memcmp(t.dqkv.device_values().data(), dqkv.data(), dqkv.size() * sizeof(double)) == 0);
  }
}

TEST_CASE("attention survives extreme scores on the device", "[gpu][kernel]") {
  Gpu on;
  for (const DType dtype : gpu_dtypes) {
    Tensors t(on, dtype, {1, 200, 2, 2, 64}, 60);
    t.forward_device(on);
    t.backward_device(on);
    for (const double value : t.y.device_values()) REQUIRE(std::isfinite(value));
    for (const double value : t.dqkv.device_values()) REQUIRE(std::isfinite(value));
  }
}
