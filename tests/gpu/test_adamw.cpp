// AdamW on the GPU against its CPU twin.
#include "potato/kernels/adamw.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

// The four arrays of a step and the copy; `skip` elements lie before them, which takes their alignment away.
struct Arrays {
  Twin weight, copy, gradient, exp_avg, exp_avg_sq, norm;
  std::int64_t skip, n;
  bool has_copy;

  Arrays(Gpu& on, DType copy_dtype, std::int64_t num_elems, std::int64_t skipped)
      : weight(on, DType::f32, {num_elems + skipped}, 1),
        copy(on, copy_dtype, {num_elems + skipped}, 2, 1e4),
        gradient(on, DType::f32, {num_elems + skipped}, 3, 10),
        exp_avg(on, DType::f32, {num_elems + skipped}, 4, 0),
        exp_avg_sq(on, DType::f32, {num_elems + skipped}, 5, 0),
        norm(on, DType::f64, {1}, std::vector<double>{7.5}),
        skip(skipped),
        n(num_elems),
        has_copy(copy_dtype != DType::f32) {}

  void step(bool on_host, const AdamWStep& settings, Stream& stream) {
    const auto part = [&](Twin& twin) { return (on_host ? twin.host() : twin.device()).rows(skip, n); };
    const TensorView none(nullptr, DType::bf16, {0}, stream.device());
    adamw(part(weight), has_copy ? part(copy) : none, part(gradient), part(exp_avg), part(exp_avg_sq),
          on_host ? norm.host() : norm.device(), settings, stream);
  }
};

}  // namespace

TEST_CASE("adamw with and without a working copy, aligned or not", "[gpu][kernel]") {
  for (const DType copy_dtype : gpu_dtypes) {  // fp32: none
    for (const std::int64_t n : {1, 3, 4, 257, 4096, 1000003}) {
      for (const std::int64_t skip : {0, 1}) {
        Gpu on;
        Stream cpu = twin_stream();
        Arrays arrays(on, copy_dtype, n, skip), again(on, copy_dtype, n, skip);
        AdamWStep settings;
        settings.learning_rate = 3e-3;
        settings.weight_decay = 0.1;
        settings.max_norm = 1;
        settings.gradient_scale = 0.25;
        for (settings.step = 1; settings.step <= 3; ++settings.step) {
          arrays.step(true, settings, cpu);
          arrays.step(false, settings, on.stream);
          again.step(false, settings, on.stream);
        }
        INFO(dtype_name(copy_dtype) << ", " << n << " weights from " << skip);
        CHECK(arrays.weight.distance() <= tolerance(DType::f32));
        CHECK(arrays.exp_avg.distance() <= tolerance(DType::f32));
        CHECK(arrays.exp_avg_sq.distance() <= tolerance(DType::f32));
        CHECK(arrays.copy.distance() <= tolerance(copy_dtype));
        CHECK(arrays.weight.device_values() == again.weight.device_values());
        CHECK(arrays.copy.device_values() == again.copy.device_values());
        if (copy_dtype == DType::f32) continue;
        auto rounded = rounded_to(copy_dtype, arrays.weight.device_values());
        auto copied = arrays.copy.device_values();
        rounded.erase(rounded.begin(), rounded.begin() + skip);
        copied.erase(copied.begin(), copied.begin() + skip);
        CHECK(copied == rounded);
      }
    }
  }
}

TEST_CASE("adamw reads no norm where it does not clip", "[gpu][kernel]") {
  Gpu on;
  Stream cpu = twin_stream();
  Arrays arrays(on, DType::bf16, 100, 0);
  arrays.norm.set({NAN});
  AdamWStep settings;
  settings.learning_rate = 1e-2;
  arrays.step(true, settings, cpu);
  arrays.step(false, settings, on.stream);
  CHECK(arrays.weight.distance() <= tolerance(DType::f32));
}

TEST_CASE("adamw skips an update whose norm is not finite", "[gpu][kernel]") {
  Gpu on;
  Stream cpu = twin_stream();
  Arrays arrays(on, DType::f16, 1000, 0);
  AdamWStep settings;
  settings.learning_rate = 1e-2;
  settings.skip_nonfinite = true;
  arrays.step(false, settings, on.stream);
  const auto weight = arrays.weight.device_values();
  const auto copy = arrays.copy.device_values();
  const auto exp_avg_sq = arrays.exp_avg_sq.device_values();
  for (const double norm : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    arrays.norm.set({norm});
    arrays.step(false, settings, on.stream);
    CHECK(arrays.weight.device_values() == weight);
    CHECK(arrays.copy.device_values() == copy);
    CHECK(arrays.exp_avg_sq.device_values() == exp_avg_sq);
  }
}
