#include "potato/optim/optimizer.hpp"

#include "potato/kernels/adamw.hpp"
#include "potato/kernels/elementwise.hpp"

namespace potato {

Optimizer::Optimizer(const OptimizerConfig& config, ParameterRegistry& registry, Arena& arena, Stream& stream)
    : config_(config),
      registry_(registry),
      exp_avg_(arena, registry.weights().dtype, {registry.num_flat_elems()}),
      exp_avg_sq_(arena, registry.weights().dtype, {registry.num_flat_elems()}) {
  fill(exp_avg_, 0, stream);
  fill(exp_avg_sq_, 0, stream);
}

void Optimizer::step(double learning_rate, std::int64_t update, ConstTensorView squared_norm, Stream& stream) {
  AdamWStep settings;
  settings.learning_rate = learning_rate;
  settings.beta1 = config_.beta1;
  settings.beta2 = config_.beta2;
  settings.eps = config_.eps;
  settings.step = update;
  settings.max_norm = config_.gradient_clipping;
  for (const Parameter& parameter : registry_.parameters()) {
    settings.weight_decay = parameter.spec.decay ? config_.weight_decay : 0;
    const std::int64_t num_elems = parameter.spec.shape.num_elems();
    const auto flat = [&](const TensorView& view) { return view.reshaped({num_elems}); };
    adamw(flat(parameter.weight), flat(parameter.gradient),
          exp_avg_.view().rows(parameter.flat_offset_elems, num_elems),
          exp_avg_sq_.view().rows(parameter.flat_offset_elems, num_elems), squared_norm, settings, stream);
  }
}

}  // namespace potato
