// Attention by cuDNN against the CPU twin, and what the library chose.
#include <cmath>
#include <iostream>
#include <limits>
#include <vector>

#include "../../src/kernels/cuda/cudnn_attention.hpp"
#include "potato/kernels/attention.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

namespace potato {
namespace {

using cuda::AttentionPass;
using test::Gpu;
using test::Twin;

AttentionShape make_shape(std::int64_t batch, std::int64_t sequence, std::int64_t num_heads, std::int64_t num_kv_heads,
                          std::int64_t head_dim, bool causal) {
  AttentionShape shape;
  shape.batch = batch;
  shape.sequence = sequence;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  shape.causal = causal;
  shape.scale = 1.5 / std::sqrt(static_cast<double>(head_dim));  // not the usual one: it must be ours that is used
  return shape;
}

std::string text_of(const AttentionShape& s, DType dtype) {
  return cat(dtype_name(dtype), " B ", s.batch, " T ", s.sequence, " H ", s.num_heads, " K ", s.num_kv_heads, " D ",
             s.head_dim, s.causal ? " causal" : " full");
}

// Tensors of one call on both sides. Results begin as NaN, so that an element left unwritten shows.
struct Case {
  Case(Gpu& on, const AttentionShape& s, DType dtype)
      : gpu(on),
        shape(s),
        qkv(on, dtype, {s.batch * s.sequence, (s.num_heads + 2 * s.num_kv_heads) * s.head_dim}, 1),
        dy(on, dtype, {s.batch * s.sequence, s.num_heads * s.head_dim}, 2),
        y(on, dtype, {s.batch * s.sequence, s.num_heads * s.head_dim},
          nans(s.batch * s.sequence * s.num_heads * s.head_dim)),
        lse(on, DType::f32, {s.batch, s.num_heads, s.sequence}, nans(s.batch * s.num_heads * s.sequence)),
        scratch(on, DType::f32, {s.batch, s.num_heads, s.sequence}, nans(s.batch * s.num_heads * s.sequence)),
        dqkv(on, dtype, qkv.device().shape, nans(qkv.device().num_elems())) {}

  static std::vector<double> nans(std::int64_t count) {
    return std::vector<double>(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN());
  }

  void run_cpu() {
    Stream stream = test::twin_stream();
    attention_forward(qkv.host(), y.host(), lse.host(), shape, Dropout{}, rows(), stream);
    attention_backward(dy.host(), qkv.host(), y.host(), lse.host(), dqkv.host(), scratch.host(), shape, Dropout{},
                       rows(), stream);
    stream.synchronize();
  }
  void run_forward() { cuda::cudnn_attention_forward(qkv.device(), y.device(), lse.device(), shape, gpu.stream); }
  void run_backward(bool deterministic) {
    cuda::cudnn_attention_backward(dy.device(), qkv.device(), y.device(), lse.device(), dqkv.device(), shape,
                                   deterministic, gpu.stream);
  }
  // NaN in the gradient and in all scratch memory: cuDNN must clear what it adds to.
  void poison(bool deterministic) {
    const std::int64_t num_bytes =
        cuda::cudnn_attention_backward_workspace_bytes(shape, qkv.device().dtype, deterministic);
    gpu.stream.synchronize();
    PC_CUDA(cudaMemset(gpu.stream.workspace(num_bytes), 0xFF, static_cast<std::size_t>(num_bytes)));
    PC_CUDA(cudaMemset(dqkv.device().data, 0xFF, static_cast<std::size_t>(dqkv.device().num_bytes())));
    PC_CUDA(cudaDeviceSynchronize());
  }
  TokenRows rows() const { return {0, shape.sequence, 0}; }

  Gpu& gpu;
  AttentionShape shape;
  Twin qkv, dy, y, lse, scratch, dqkv;
};

// ‖a − b‖ / ‖b‖ over one part of the packed gradient's columns: a small part must not hide behind a large one.
double part_distance(const Case& c, std::int64_t first_column, std::int64_t num_columns) {
  const std::vector<double> device = c.dqkv.device_values(), host = c.dqkv.host_values();
  const std::int64_t columns = (c.shape.num_heads + 2 * c.shape.num_kv_heads) * c.shape.head_dim;
  double difference = 0, norm = 0;
  for (std::int64_t row = 0; row < c.shape.batch * c.shape.sequence; ++row) {
    for (std::int64_t i = 0; i < num_columns; ++i) {
      const auto at = static_cast<std::size_t>(row * columns + first_column + i);
      if (!std::isfinite(device[at])) return NAN;
      difference += (device[at] - host[at]) * (device[at] - host[at]);
      norm += host[at] * host[at];
    }
  }
  return std::sqrt(difference / norm);
}

void check_gradient(const Case& c, double most) {
  const std::int64_t q_columns = c.shape.num_heads * c.shape.head_dim;
  const std::int64_t kv_columns = c.shape.num_kv_heads * c.shape.head_dim;
  CHECK(part_distance(c, 0, q_columns) < most);
  CHECK(part_distance(c, q_columns, kv_columns) < most);
  CHECK(part_distance(c, q_columns + kv_columns, kv_columns) < most);
}

const AttentionShape shapes[] = {
    make_shape(2, 256, 4, 4, 64, true),   make_shape(2, 256, 4, 4, 64, false), make_shape(3, 200, 6, 2, 80, true),
    make_shape(2, 333, 4, 4, 96, true),   make_shape(2, 333, 4, 1, 96, false), make_shape(1, 384, 8, 2, 128, true),
    make_shape(2, 127, 2, 2, 128, false), make_shape(2, 129, 3, 3, 8, true),   make_shape(4, 2, 2, 1, 64, true),
};

TEST_CASE("cuDNN attention: forward and backward equal the CPU twin", "[gpu][cudnn]") {
  Gpu gpu;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const AttentionShape& shape : shapes) {
      if (!cuda::cudnn_attention_supports(shape, dtype, Dropout{})) {
        WARN("cuDNN " << cuda::cudnn_version() << " is not used for " << text_of(shape, dtype));
        continue;
      }
      INFO(text_of(shape, dtype));
      Case c(gpu, shape, dtype);
      c.run_cpu();
      c.run_forward();
      CHECK(c.y.distance() < test::tolerance(dtype));
      // Natural logarithm, of scaled scores: the twin's own definition. fp32, but of products of rounded inputs.
      CHECK(c.lse.distance() < 1e-5);
      for (const bool deterministic : {false, true}) {
        INFO((deterministic ? "deterministic" : "sums in any order"));
        c.poison(deterministic);
        c.run_backward(deterministic);
        // P and dS are rounded to 16 bits before their products; grouped heads' shares of dk and dv once more.
        check_gradient(c, 2 * test::tolerance(dtype));
      }
    }
  }
}

TEST_CASE("cuDNN attention: forward and deterministic backward repeat bit by bit", "[gpu][cudnn]") {
  Gpu gpu;
  for (const AttentionShape& shape : {make_shape(2, 512, 8, 8, 64, true), make_shape(2, 512, 8, 2, 128, true)}) {
    INFO(text_of(shape, DType::bf16));
    Case c(gpu, shape, DType::bf16);
    c.run_forward();
    c.run_backward(true);
    const std::vector<double> y = c.y.device_values(), lse = c.lse.device_values(), dqkv = c.dqkv.device_values();
    for (int repeat = 0; repeat < 5; ++repeat) {
      c.run_forward();
      c.run_backward(true);
      CHECK(c.y.device_values() == y);
      CHECK(c.lse.device_values() == lse);
      CHECK(c.dqkv.device_values() == dqkv);
    }
  }
}

TEST_CASE("cuDNN attention: what it declines", "[gpu][cudnn]") {
  const AttentionShape shape = make_shape(2, 256, 4, 2, 64, true);
  CHECK(cuda::cudnn_attention_supports(shape, DType::bf16, Dropout{}));
  CHECK_FALSE(cuda::cudnn_attention_supports(shape, DType::f32, Dropout{}));
  CHECK_FALSE(cuda::cudnn_attention_supports(shape, DType::bf16, Dropout{0.1, {}}));
  CHECK_FALSE(cuda::cudnn_attention_supports(make_shape(2, 256, 4, 2, 60, true), DType::bf16, Dropout{}));
  CHECK_FALSE(cuda::cudnn_attention_supports(make_shape(2, 256, 4, 2, 136, true), DType::bf16, Dropout{}));
  CHECK_FALSE(cuda::cudnn_attention_supports(make_shape(2, 1, 4, 2, 64, true), DType::bf16, Dropout{}));
}

TEST_CASE("cuDNN attention: too small a workspace is an error that says so", "[gpu][cudnn]") {
  Gpu gpu;
  const AttentionShape shape = make_shape(2, 256, 4, 4, 64, true);
  Case c(gpu, shape, DType::bf16);
  StreamOptions options;
  options.workspace_bytes = 4096;
  Stream small(test::gpu, std::move(options));
  CHECK_THROWS_AS(cuda::cudnn_attention_backward(c.dy.device(), c.qkv.device(), c.y.device(), c.lse.device(),
                                                 c.dqkv.device(), shape, false, small),
                  Error);
}

// Not a test of values: the plans for GPT-2's shapes, for the log of the run.
TEST_CASE("cuDNN attention: plans", "[gpu][cudnn]") {
  std::cout << "cuDNN " << cuda::cudnn_version() << '\n';
  cuda::CudnnAttention attention;
  for (const AttentionShape& shape : {make_shape(64, 1024, 12, 12, 64, true), make_shape(16, 1024, 25, 25, 64, true),
                                      make_shape(8, 2048, 32, 8, 128, true), make_shape(2, 200, 6, 2, 80, true)}) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      for (const bool deterministic : {false, true}) {
        if (pass == AttentionPass::forward && deterministic) continue;
        const cuda::CudnnPlanInfo info = attention.plan_info(shape, DType::bf16, pass, deterministic);
        std::cout << text_of(shape, DType::bf16) << (pass == AttentionPass::forward ? ", forward" : ", backward")
                  << (deterministic ? " deterministic: " : ": ") << info.name << ", workspace " << info.workspace_bytes
                  << " bytes\n";
        CHECK(!info.name.empty());
        if (pass == AttentionPass::backward) {
          CHECK(info.workspace_bytes ==
                cuda::cudnn_attention_backward_workspace_bytes(shape, DType::bf16, deterministic));
        }
      }
    }
  }
}

}  // namespace
}  // namespace potato
