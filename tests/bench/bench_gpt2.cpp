// Training speed of GPT-2 124M on one CPU rank, beside what the matrix products alone would allow.
//
//   bench_gpt2 [--threads 2] [--steps 12] [--micro 4] [--seq 64]      (fp32, forward + backward + clipping + AdamW)
//
// The products' rate is total FLOPs over total time of the step's own shapes and transposes, with weights of their own
// for each layer, as in the step. A check: the first loss is ln(vocabulary) within 3 % and falls.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "potato/comm/mpi_session.hpp"
#include "potato/core/clock.hpp"
#include "potato/kernels/elementwise.hpp"
#include "potato/kernels/gemm.hpp"
#include "potato/model/stage.hpp"
#include "potato/optim/learning_rate.hpp"
#include "potato/train/engine.hpp"

namespace {

using namespace potato;

Config gpt2_124m(std::int64_t threads, std::int64_t micro_batch, std::int64_t sequence) {
  Config config;
  config.run.threads = threads;
  config.model.num_layers = 12;
  config.model.hidden_size = 768;
  config.model.num_heads = 12;
  config.model.ffn_hidden_size = 3072;
  config.model.max_position_embeddings = 1024;
  config.model.vocab_size = 50257;
  config.train.sequence_length = sequence;
  config.train.global_batch_size = micro_batch;
  config.train.micro_batch_size = micro_batch;
  config.optimizer.learning_rate = 3e-4;
  return config;
}

struct Product {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  std::int64_t repeats;
};

// Forward, input gradient and weight gradient of every linear layer of one step.
std::vector<Product> products_of(const Config& config) {
  const std::int64_t tokens = config.train.micro_batch_size * config.train.sequence_length;
  const std::int64_t c = config.model.hidden_size;
  const std::int64_t f = config.model.ffn_hidden_size;
  const std::int64_t v = vocabulary_shard(config.model.vocab_size, 0, 1).num_rows;
  std::vector<Product> products;
  const auto linear = [&](std::int64_t out, std::int64_t in, std::int64_t repeats) {
    products.push_back({false, true, tokens, out, in, repeats});
    products.push_back({false, false, tokens, in, out, repeats});
    products.push_back({true, false, out, in, tokens, repeats});
  };
  linear(3 * c, c, config.model.num_layers);
  linear(c, c, config.model.num_layers);
  linear(f, c, config.model.num_layers);
  linear(c, f, config.model.num_layers);
  linear(v, c, 1);
  return products;
}

// FLOP/s of the products, each repeat with matrices of its own.
double products_rate(const std::vector<Product>& products, Stream& stream) {
  double flops = 0;
  double seconds = 0;
  const Device cpu{DeviceKind::cpu, 0};
  for (const Product& p : products) {
    Arena arena(cpu, "bench", (p.m * p.k + p.k * p.n + p.m * p.n + 3 * 64) * 4 * p.repeats);
    std::vector<Tensor> tensors;
    for (std::int64_t i = 0; i < p.repeats; ++i) {
      const Shape a = p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k};
      const Shape b = p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n};
      for (const Shape& shape : {a, b, Shape{p.m, p.n}}) {
        fill(tensors.emplace_back(arena, DType::f32, shape), 0.5, stream);
      }
    }
    const auto all = [&] {
      for (std::size_t i = 0; i < tensors.size(); i += 3) {
        gemm(tensors[i], p.transpose_a, tensors[i + 1], p.transpose_b, tensors[i + 2], 1, 0, stream);
      }
      stream.synchronize();
    };
    all();
    double best_s = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const double start_s = now_s();
      all();
      best_s = std::min(best_s, now_s() - start_s);
    }
    seconds += best_s;
    flops += 2.0 * static_cast<double>(p.m * p.n * p.k * p.repeats);
  }
  return flops / seconds;
}

std::int64_t option(int argc, char** argv, const char* name, std::int64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return std::atoll(argv[i + 1]);
  }
  return fallback;
}

}  // namespace

int main(int argc, char** argv) {
  MpiSession session(&argc, &argv);
  const std::int64_t threads = option(argc, argv, "--threads", 2);
  const std::int64_t num_steps = option(argc, argv, "--steps", 12);
  const Config config = gpt2_124m(threads, option(argc, argv, "--micro", 4), option(argc, argv, "--seq", 64));
  const GridShape shape{1, 1, 1};
  Engine engine(config, make_mpi_communicators(MPI_COMM_SELF, shape), Device{DeviceKind::cpu, 0},
                planned_bytes(config, shape, 0), {});
  const std::int64_t tokens = config.train.micro_batch_size * config.train.sequence_length;
  const Engine::BatchBuffer batch = engine.batch_buffer(0);
  for (std::int64_t i = 0; i < tokens; ++i) {
    batch.tokens[i] = static_cast<std::int32_t>((i * 7919 + 13) % 50257);
    batch.targets[i] = static_cast<std::int32_t>(((i + 1) * 7919 + 13) % 50257);
  }
  std::vector<double> times_s;
  double first_loss = 0;
  double last_loss = 0;
  PhaseTimes phases;
  for (std::int64_t i = 0; i < num_steps + 2; ++i) {
    const double start_s = now_s();
    engine.enqueue_step(0, 0, tokens, 3e-4, i + 1);
    last_loss = engine.finish_step().loss;
    if (i == 0) first_loss = last_loss;
    if (i >= 2) times_s.push_back(now_s() - start_s);
    if (i == 1) engine.take_times();
  }
  phases = engine.take_times();
  std::nth_element(times_s.begin(), times_s.begin() + num_steps / 2, times_s.end());
  const double step_s = times_s[static_cast<std::size_t>(num_steps / 2)];
  if (std::abs(first_loss / std::log(50257.0) - 1) > 0.03 || last_loss > first_loss - 0.5) {
    std::fprintf(stderr, "bench_gpt2: wrong results: loss %.4f then %.4f\n", first_loss, last_loss);
    return 1;
  }
  StreamOptions options;
  options.threads = static_cast<int>(threads);
  Stream stream(Device{DeviceKind::cpu, 0}, options);
  const double own_rate = products_rate(products_of(config), stream);
  const double cube_rate = products_rate({{false, false, 2048, 2048, 2048, 1}}, stream);
  const double tokens_per_s = static_cast<double>(tokens) / step_s;
  const auto num_parameters = static_cast<double>(num_model_parameters(config.model));
  const double model_rate = 6 * num_parameters * tokens_per_s;
  const double per_step_ms = 1e3 / static_cast<double>(num_steps);
  std::fprintf(
      stderr,
      "  step %.1f ms: forward %.1f, backward %.1f, optimizer %.1f\n"
      "  model %.1f GFLOP/s (6 x parameters x tokens/s); the step's products alone %.1f; share %.3f; sgemm of 2048^3 "
      "%.1f\n",
      step_s * 1e3, phases.forward_s * per_step_ms, phases.backward_s * per_step_ms, phases.optimizer_s * per_step_ms,
      model_rate * 1e-9, own_rate * 1e-9, model_rate / own_rate, cube_rate * 1e-9);
  std::printf(
      "{\"program\": \"potatochat\", \"model\": \"gpt2-124m\", \"threads\": %lld, \"tokens_per_s\": %.2f, "
      "\"model_gflops\": %.2f, \"products_gflops\": %.2f, \"sgemm_2048_gflops\": %.2f, \"share\": %.3f}\n",
      static_cast<long long>(threads), tokens_per_s, model_rate * 1e-9, own_rate * 1e-9, cube_rate * 1e-9,
      model_rate / own_rate);
  return 0;
}
