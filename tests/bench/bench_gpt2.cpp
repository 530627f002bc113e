// Training speed of GPT-2 on one rank (forward + backward + clipping + AdamW); on the CPU beside what the matrix
// products alone would allow.
//
//   bench_gpt2 [--model gpt2-124m] [--device cpu|cuda] [--dtype fp32|tf32|bf16] [--threads 2] [--steps 12] [--micro 4]
//              [--seq 64] [--loss-chunk 0] [--recompute none|selective|full] [--attention auto|own|cudnn]
//              [--deterministic 1] [--profile 0]
//
// The products' rate is total FLOPs over total time of the step's own shapes and transposes, with weights of their own
// for each layer, as in the step. A check: the first loss is ln(vocabulary) within 3 % and falls.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "potato/comm/mpi_session.hpp"
#include "potato/core/clock.hpp"
#include "potato/kernels/elementwise.hpp"
#include "potato/kernels/gemm.hpp"
#include "potato/kernels/libraries.hpp"
#include "potato/model/stage.hpp"
#include "potato/optim/learning_rate.hpp"
#include "potato/train/engine.hpp"

namespace {

using namespace potato;

struct ModelSize {
  const char* name;
  std::int64_t num_layers, hidden_size, num_heads;
};
constexpr ModelSize model_sizes[] = {
    {"gpt2-124m", 12, 768, 12}, {"gpt2-355m", 24, 1024, 16}, {"gpt2-774m", 36, 1280, 20}, {"gpt2-1558m", 48, 1600, 25}};

// Values of "--name value" pairs.
class Options {
 public:
  Options(int argc, char** argv) : argc_(argc), argv_(argv) {}
  std::string text(const char* name, const char* fallback) const {
    for (int i = 1; i + 1 < argc_; ++i) {
      if (std::strcmp(argv_[i], name) == 0) return argv_[i + 1];
    }
    return fallback;
  }
  std::int64_t number(const char* name, std::int64_t fallback) const {
    const std::string value = text(name, "");
    return value.empty() ? fallback : std::stoll(value);
  }

 private:
  int argc_;
  char** argv_;
};

template <typename Enum>
Enum parse(const std::string& text, std::initializer_list<Enum> values) {
  for (const Enum value : values) {
    if (to_text(value) == text) return value;
  }
  throw Error("unknown value " + text);
}

Config make_config(const Options& options) {
  Config config;
  const std::string name = options.text("--model", "gpt2-124m");
  const auto* size = std::find_if(std::begin(model_sizes), std::end(model_sizes),
                                  [&](const ModelSize& known) { return name == known.name; });
  if (size == std::end(model_sizes)) throw Error("unknown model " + name);
  config.run.threads = options.number("--threads", 2);
  config.model.num_layers = size->num_layers;
  config.model.hidden_size = size->hidden_size;
  config.model.num_heads = size->num_heads;
  config.model.ffn_hidden_size = 4 * size->hidden_size;
  config.model.max_position_embeddings = 1024;
  config.model.vocab_size = 50257;
  config.train.sequence_length = options.number("--seq", 64);
  config.train.micro_batch_size = options.number("--micro", 4);
  config.train.global_batch_size = config.train.micro_batch_size;
  config.train.loss_chunk_tokens = options.number("--loss-chunk", 0);
  config.train.recompute =
      parse(options.text("--recompute", "none"), {Recompute::none, Recompute::selective, Recompute::full});
  config.precision.dtype = parse(options.text("--dtype", "fp32"), {Precision::fp32, Precision::tf32, Precision::bf16});
  config.kernels.attention = parse(options.text("--attention", "auto"),
                                   {AttentionKernel::automatic, AttentionKernel::own, AttentionKernel::cudnn});
  config.run.deterministic = options.number("--deterministic", 1) != 0;
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

// Model FLOP/s by the usual count: 6 x parameters a token, and attention's 12 x layers x width x sequence without a
// discount for causality (as in PaLM's appendix B, arXiv 2204.02311).
double flops_per_token(const Config& config) {
  return 6 * static_cast<double>(num_model_parameters(config.model)) +
         12 * static_cast<double>(config.model.num_layers * config.model.hidden_size * config.train.sequence_length);
}

struct Measured {
  double first_step_s = 0;  // since the program began
  double step_s = 0;        // median
  double first_loss = 0;
  double last_loss = 0;
  PhaseTimes phases;  // a step
};

Measured train(Engine& engine, std::int64_t num_steps, std::int64_t tokens, double program_start_s) {
  const Engine::BatchBuffer batch = engine.batch_buffer(0);
  for (std::int64_t i = 0; i < tokens; ++i) {
    batch.tokens[i] = static_cast<std::int32_t>((i * 7919 + 13) % 50257);
    batch.targets[i] = static_cast<std::int32_t>(((i + 1) * 7919 + 13) % 50257);
  }
  constexpr std::int64_t num_warmup = 3;
  Measured measured;
  std::vector<double> times_s;
  for (std::int64_t i = 0; i < num_steps + num_warmup; ++i) {
    const double start_s = now_s();
    engine.enqueue_step(0, 0, tokens, 3e-4, i + 1);
    measured.last_loss = engine.finish_step().loss;
    if (i == 0) measured.first_loss = measured.last_loss;
    if (i == 0) measured.first_step_s = now_s() - program_start_s;
    if (i >= num_warmup) times_s.push_back(now_s() - start_s);
    const PhaseTimes phases = engine.take_times();
    if (i >= num_warmup) measured.phases += phases;
  }
  std::nth_element(times_s.begin(), times_s.begin() + num_steps / 2, times_s.end());
  measured.step_s = times_s[static_cast<std::size_t>(num_steps / 2)];
  return measured;
}

// The CPU's own ceiling, on stderr and as JSON fields.
std::string products_beside(const Config& config, double model_rate) {
  StreamOptions options;
  options.threads = static_cast<int>(config.run.threads);
  Stream stream(Device{DeviceKind::cpu, 0}, options);
  const double own_rate = products_rate(products_of(config), stream);
  const double cube_rate = products_rate({{false, false, 2048, 2048, 2048, 1}}, stream);
  std::fprintf(stderr,
               "  model %.1f GFLOP/s (6 x parameters x tokens/s); the step's products alone %.1f; share %.3f; sgemm of "
               "2048^3 %.1f\n",
               model_rate * 1e-9, own_rate * 1e-9, model_rate / own_rate, cube_rate * 1e-9);
  return cat(", \"model_gflops\": ", model_rate * 1e-9, ", \"products_gflops\": ", own_rate * 1e-9,
             ", \"sgemm_2048_gflops\": ", cube_rate * 1e-9, ", \"share\": ", model_rate / own_rate);
}

int bench(const Options& options, double program_start_s) {
  const Config config = make_config(options);
  const bool is_cuda = options.text("--device", "cpu") == "cuda";
  const std::int64_t num_steps = options.number("--steps", 12);
  const GridShape shape{1, 1, 1};
  const Device device{is_cuda ? DeviceKind::cuda : DeviceKind::cpu, 0};
  Engine engine(config, make_mpi_communicators(MPI_COMM_SELF, shape), device,
                planned_bytes(config, shape, 0, device.kind), {});
  const std::int64_t tokens = config.train.micro_batch_size * config.train.sequence_length;
  const Measured measured = train(engine, num_steps, tokens, program_start_s);
  if (std::abs(measured.first_loss / std::log(50257.0) - 1) > 0.03 || measured.last_loss > measured.first_loss - 0.5) {
    std::fprintf(stderr, "bench_gpt2: wrong results: loss %.4f then %.4f\n", measured.first_loss, measured.last_loss);
    return 1;
  }
  if (options.number("--profile", 0) != 0) {
    OperationProfile profile;
    engine.set_profile(&profile);
    constexpr std::int64_t num_profiled = 3;
    for (std::int64_t i = 0; i < num_profiled; ++i) {
      engine.enqueue_step(0, 0, tokens, 3e-4, num_steps + 4 + i);
      engine.finish_step();
    }
    engine.set_profile(nullptr);
    std::fprintf(stderr, "%s", profile.table(num_profiled).c_str());
  }
  const double tokens_per_s = static_cast<double>(tokens) / measured.step_s;
  const double per_step_ms = 1e3 / static_cast<double>(num_steps);
  std::fprintf(stderr, "  step %.2f ms: forward %.2f, backward %.2f, optimizer %.2f\n", measured.step_s * 1e3,
               measured.phases.forward_s * per_step_ms, measured.phases.backward_s * per_step_ms,
               measured.phases.optimizer_s * per_step_ms);
  std::string more;
  if (is_cuda) {
    double claimed = 0;
    const OwnerBytes capacity = engine.capacity_bytes();
    for (std::size_t i = 0; i < capacity.size(); ++i) {
      std::fprintf(stderr, "  %-14s %8.3f GB\n", owner_names[i], static_cast<double>(capacity[i]) * 1e-9);
      if (!is_on_host(static_cast<Owner>(i))) claimed += static_cast<double>(capacity[i]);
    }
    more = cat(", \"model_tflops\": ", flops_per_token(config) * tokens_per_s * 1e-12,
               ", \"peak_gib\": ", claimed / (1 << 30), ", \"first_step_s\": ", measured.first_step_s,
               ", \"libraries\": \"", cuda_library_versions(), "\"");
  } else {
    more = products_beside(config, 6 * static_cast<double>(num_model_parameters(config.model)) * tokens_per_s);
  }
  std::printf(
      "{\"program\": \"potatochat\", \"model\": \"%s\", \"dtype\": \"%s\", \"micro\": %lld, \"seq\": %lld, "
      "\"threads\": %lld, \"tokens_per_s\": %.2f%s}\n",
      options.text("--model", "gpt2-124m").c_str(), to_text(config.precision.dtype).c_str(),
      static_cast<long long>(config.train.micro_batch_size), static_cast<long long>(config.train.sequence_length),
      static_cast<long long>(config.run.threads), tokens_per_s, more.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double start_s = now_s();
  MpiSession session(&argc, &argv);
  try {
    return bench(Options(argc, argv), start_s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpt2: %s\n", error.what());
    return 1;
  }
}
