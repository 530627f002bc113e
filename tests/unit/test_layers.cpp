// Every layer's gradient against central finite differences in fp64: of its input and of each of its parameters.
#include <cmath>
#include <functional>
#include <vector>

#include "potato/kernels/elementwise.hpp"
#include "potato/layers/block.hpp"
#include "potato/layers/embedding.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

constexpr std::int64_t batch = 2;
constexpr std::int64_t sequence = 5;
constexpr std::int64_t num_tokens = batch * sequence;

ModelConfig small_model() {
  ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 12;
  model.num_heads = 3;
  model.ffn_hidden_size = 20;
  model.max_position_embeddings = 7;
  model.vocab_size = 11;
  return model;
}

// What a layer stands on, without MPI.
struct Bench {
  Device cpu{DeviceKind::cpu, 0};
  Stream stream{cpu, StreamOptions{.name = "test", .on_error = {}}};
  Arena arena{cpu, "test", 1 << 22};
  Arena weights{cpu, "weights", 1 << 20};
  Arena gradients{cpu, "gradients", 1 << 20};
  std::unique_ptr<Communicator> tensor = make_dry_communicator(Axis::tensor, 0, 1);
  ParameterRegistry registry;
  Tensor loss{arena, DType::f64, {1}};
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;

  Bench() {
    for (std::int64_t i = 0; i < num_tokens; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * 5 % 11));
      targets.push_back(i % 4 == 3 ? -1 : static_cast<std::int32_t>(i * 3 % 11));
    }
  }

  LayerContext context(Recompute recompute = Recompute::none) {
    return {.stream = stream,
            .activations = arena,
            .tensor = *tensor,
            .registry = registry,
            .dtype = DType::f64,
            .sequence_parallel = false,
            .recompute = recompute,
            .dropout = 0.2,
            .seed = 7};
  }

  MicroBatch micro_batch() {
    MicroBatch result;
    result.batch = batch;
    result.sequence = sequence;
    result.first_sample = 3;
    result.tokens = ConstTensorView(tokens.data(), DType::i32, {num_tokens}, cpu);
    result.targets = ConstTensorView(targets.data(), DType::i32, {num_tokens}, cpu);
    result.gradient_scale = 1;
    result.loss_sum = loss;
    return result;
  }

  // Weights that are neither 0 nor 1, so that every term of a gradient shows.
  void allocate() {
    registry.allocate({weights, gradients, weights}, {.dtype = DType::f64, .bucket_elems = 1000});
    registry.initialize(5, stream);
    auto* values = registry.master_block().as<double>();
    for (std::int64_t i = 0; i < registry.num_flat_elems(); ++i)
      values[i] = 0.3 * values[i] + 0.2 * std::sin(0.7 * static_cast<double>(i));
    registry.begin_step(1, stream);
  }

  Tensor wave(Shape shape, double phase) {
    Tensor x(arena, DType::f64, shape);
    auto* values = x.view().as<double>();
    for (std::int64_t i = 0; i < shape.num_elems(); ++i) values[i] = std::sin(0.37 * static_cast<double>(i) + phase);
    return x;
  }

  Tensor clone(const Tensor& x) {
    Tensor y(arena, DType::f64, x.view().shape);
    copy(x, y, stream);
    return y;
  }

  double dot(const Tensor& a, const Tensor& b) {
    stream.synchronize();
    double sum = 0;
    for (std::int64_t i = 0; i < a.view().num_elems(); ++i) sum += a.view().as<double>()[i] * b.view().as<double>()[i];
    return sum;
  }
};

// Compares `analytic[i]` with the central difference of `value` over `x[i]`.
void check_gradient(const char* what, double* x, const double* analytic, std::int64_t count,
                    const std::function<double()>& value) {
  double largest = 1e-3;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(analytic[i]));
  for (std::int64_t i = 0; i < count; ++i) {
    const double kept = x[i];
    constexpr double h = 1e-5;
    x[i] = kept + h;
    const double above = value();
    x[i] = kept - h;
    const double below = value();
    x[i] = kept;
    const double numeric = (above - below) / (2 * h);
    if (std::abs(numeric - analytic[i]) > 1e-6 * largest) {
      FAIL_CHECK(what << "[" << i << "]: " << analytic[i] << ", finite difference " << numeric);
      return;
    }
  }
}

void check_parameters(Bench& bench, const std::function<double()>& value) {
  for (const Parameter& parameter : bench.registry.parameters()) {
    for (const Piece& piece : parameter.spec.pieces) {
      const TensorView weight = ParameterRegistry::piece_view(piece, parameter.weight);
      const TensorView gradient = ParameterRegistry::piece_view(piece, parameter.gradient);
      const std::vector<double> analytic(gradient.as<double>(), gradient.as<double>() + gradient.num_elems());
      check_gradient(piece.name.c_str(), weight.as<double>(), analytic.data(), gradient.num_elems(), value);
    }
  }
}

}  // namespace

TEST_CASE("a transformer layer's gradients equal finite differences, whatever is recomputed", "[layers]") {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    Bench bench;
    const LayerContext ctx = bench.context(recompute);
    const TransformerBlock block(ctx, "layers.0", small_model());
    bench.allocate();
    Tensor x = bench.wave({num_tokens, 12}, 0.1);
    const Tensor seed = bench.wave({num_tokens, 12}, 1.3);
    const MicroBatch micro_batch = bench.micro_batch();
    const auto value = [&] {
      MicroBatch forward_only = micro_batch;
      TransformerBlock::Saved saved;
      return bench.dot(block.forward(ctx, forward_only, bench.clone(x), saved, {}), seed);
    };
    TransformerBlock::Saved saved;
    block.forward(ctx, micro_batch, bench.clone(x), saved, {});
    const Tensor dx = block.backward(ctx, micro_batch, bench.clone(seed), saved);
    bench.stream.synchronize();
    INFO("recompute " << static_cast<int>(recompute));
    check_gradient("x", x.view().as<double>(), dx.view().as<double>(), x.view().num_elems(), value);
    check_parameters(bench, value);
  }
}

TEST_CASE("the embedding's gradients equal finite differences", "[layers]") {
  Bench bench;
  const LayerContext ctx = bench.context();
  const ModelConfig model = small_model();
  Parameter& tokens =
      declare_vocabulary_weight(ctx, "tok_embed.weight", model.vocab_size, model.hidden_size, Sharing::tied, true);
  const Embedding embedding(ctx, model, tokens);
  bench.allocate();
  const Tensor seed = bench.wave({num_tokens, 12}, 1.3);
  const MicroBatch micro_batch = bench.micro_batch();
  embedding.backward(ctx, micro_batch, bench.clone(seed));
  bench.stream.synchronize();
  check_parameters(bench, [&] { return bench.dot(embedding.forward(ctx, micro_batch), seed); });
}

TEST_CASE("the head's gradients equal finite differences, in one piece and in chunks", "[layers]") {
  for (const std::int64_t chunk : {0, 3}) {
    Bench bench;
    const LayerContext ctx = bench.context();
    const ModelConfig model = small_model();
    Parameter& weight =
        declare_vocabulary_weight(ctx, "head.weight", model.vocab_size, model.hidden_size, Sharing::sharded, true);
    const LmHead head(ctx, model, weight, chunk);
    bench.allocate();
    Tensor x = bench.wave({num_tokens, 12}, 0.1);
    const MicroBatch micro_batch = bench.micro_batch();
    const Tensor dx = head.forward(ctx, micro_batch, bench.clone(x));
    bench.stream.synchronize();
    const auto value = [&] {
      MicroBatch forward_only = micro_batch;
      forward_only.training = false;
      fill(bench.loss, 0, bench.stream);
      head.forward(ctx, forward_only, bench.clone(x));
      bench.stream.synchronize();
      return bench.loss.view().as<double>()[0];
    };
    INFO("chunk " << chunk);
    check_gradient("x", x.view().as<double>(), dx.view().as<double>(), x.view().num_elems(), value);
    check_parameters(bench, value);
  }
}
