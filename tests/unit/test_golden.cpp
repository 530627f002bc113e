// PyTorch as a second opinion: tests/golden/gpt2_tiny.json, made by scripts/golden_gpt2.py.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "potato/core/hash.hpp"
#include "single_rank.hpp"
#include "support/catch.hpp"

using namespace potato;
using namespace potato::test;

namespace {

nlohmann::json golden() {
  std::ifstream in(std::string(POTATO_SOURCE_DIR) + "/tests/golden/gpt2_tiny.json");
  return nlohmann::json::parse(in);
}

Config config_of(const nlohmann::json& json, Precision precision) {
  Config config;
  config.run.threads = 1;
  config.data.path = "synthetic";
  config.model.num_layers = json["model"]["num_layers"];
  config.model.hidden_size = json["model"]["hidden_size"];
  config.model.num_heads = json["model"]["num_heads"];
  config.model.ffn_hidden_size = json["model"]["ffn_hidden_size"];
  config.model.max_position_embeddings = json["model"]["max_position_embeddings"];
  config.model.vocab_size = json["model"]["vocab_size"];
  config.train.sequence_length = json["train"]["sequence_length"];
  config.train.global_batch_size = json["train"]["global_batch_size"];
  config.train.micro_batch_size = 2;
  config.optimizer.weight_decay = json["train"]["weight_decay"];
  config.optimizer.beta1 = json["train"]["beta1"];
  config.optimizer.beta2 = json["train"]["beta2"];
  config.optimizer.eps = json["train"]["eps"];
  config.optimizer.gradient_clipping = json["train"]["gradient_clipping"];
  config.precision.dtype = precision;
  return config;
}

// The script's formula for a tensor's initial values.
double initial_value(const std::string& name, std::int64_t index, bool is_vector) {
  const double phase = static_cast<double>(hash_name(name) % 1000) / 100.0;
  const bool is_norm_weight = name.find("norm") != std::string::npos && name.ends_with("weight");
  const double base = is_norm_weight ? 1 : 0;
  const double scale = is_norm_weight ? 0.1 : is_vector ? 0.05 : 0.15;
  return base + scale * std::sin(0.37 * static_cast<double>(index) +
                                 0.011 * static_cast<double>((index * index) % 997) + phase);
}

std::int64_t token(std::int64_t step, std::int64_t sample, std::int64_t t) {
  return (7 * step + 13 * sample + 5 * t + (t * t) % 11 + 3 * ((t * sample) % 5)) % 61;
}

template <typename Body>
void for_each_piece(Engine& engine, Body&& body) {
  for (const Parameter& parameter : engine.registry().parameters()) {
    for (const Piece& piece : parameter.spec.pieces) {
      const TensorView view = ParameterRegistry::piece_view(piece, parameter.weight);
      dispatch_real(view.dtype, [&](auto zero) { body(piece, view.as<decltype(zero)>()); });
    }
  }
}

// Relative to the value, or to the largest of its kind where that is given.
double error(double ours, double theirs, double scale) {
  return std::abs(ours - theirs) / std::max(std::abs(theirs), scale);
}

void compare(Precision precision, const char* dtype, double tolerance) {
  const auto json = golden();
  const Config config = config_of(json, precision);
  const auto engine = single_rank_engine(config);
  for_each_piece(*engine, [](const Piece& piece, auto* values) {
    for (std::int64_t i = 0; i < piece.num_elems(); ++i) {
      values[i] = static_cast<std::remove_reference_t<decltype(*values)>>(
          initial_value(piece.name, i, piece.shape.num_dims() == 1));
    }
  });
  const std::int64_t length = config.train.sequence_length;
  for (std::int64_t step = 0; step < json["train"]["steps"].get<std::int64_t>(); ++step) {
    const Engine::BatchBuffer batch = engine->batch_buffer(0);
    std::int64_t num_targets = 0;
    for (std::int64_t sample = 0; sample < config.train.global_batch_size; ++sample) {
      for (std::int64_t t = 0; t < length; ++t) {
        const bool counts = (t + sample) % 7 != 6;
        batch.tokens[sample * length + t] = static_cast<std::int32_t>(token(step, sample, t));
        batch.targets[sample * length + t] = counts ? static_cast<std::int32_t>(token(step, sample, t + 1)) : -1;
        num_targets += counts;
      }
    }
    engine->enqueue_step(0, step * 4, num_targets, json["train"]["learning_rate"], step + 1);
    const StepResult result = engine->finish_step();
    INFO(dtype << " step " << step);
    const auto index = static_cast<std::size_t>(step);
    CHECK(error(result.loss, json[dtype]["loss"][index], 0) <= tolerance);
    CHECK(error(result.grad_norm, json[dtype]["grad_norm"][index], 0) <= tolerance);
  }
  if (precision != Precision::fp64) return;
  std::size_t num_tensors = 0;
  for_each_piece(*engine, [&](const Piece& piece, auto* values) {
    if (piece.name.find("attn.k.bias") != std::string::npos) return;  // zero gradient in exact arithmetic
    ++num_tensors;
    const auto& expected = json["fp64"]["weights"][piece.name];
    double sum = 0;
    double squares = 0;
    for (std::int64_t i = 0; i < piece.num_elems(); ++i) {
      sum += static_cast<double>(values[i]);
      squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    INFO(piece.name);
    const double largest = std::sqrt(squares);
    CHECK(error(sum, expected["sum"], largest) <= tolerance);
    CHECK(error(squares, expected["sum_of_squares"], 0) <= tolerance);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(error(static_cast<double>(values[i]), expected["first"][i], 0.02) <= tolerance);
    }
  });
  CHECK(num_tensors == json["fp64"]["weights"].size() - 2);
}

}  // namespace

TEST_CASE("ten AdamW steps equal PyTorch's in fp64", "[golden]") { compare(Precision::fp64, "fp64", 1e-10); }

TEST_CASE("ten AdamW steps equal PyTorch's in fp32", "[golden]") { compare(Precision::fp32, "fp32", 1e-5); }
