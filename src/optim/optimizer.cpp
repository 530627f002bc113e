#include "potato/optim/optimizer.hpp"

#include "potato/kernels/adamw.hpp"
#include "potato/kernels/elementwise.hpp"

namespace potato {

Optimizer::Optimizer(const OptimizerConfig& config, ParameterRegistry& registry, Arena& arena, Stream& stream)
    : config_(config),
      registry_(registry),
      decayed_(registry.ranges([](const Parameter& parameter) { return parameter.spec.decay; })),
      plain_(registry.ranges([](const Parameter& parameter) { return !parameter.spec.decay; })),
      exp_avg_(arena, registry.master().dtype, {registry.num_flat_elems()}),
      exp_avg_sq_(arena, registry.master().dtype, {registry.num_flat_elems()}) {
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
  const auto update_ranges = [&](const std::vector<FlatRange>& ranges) {
    for (const FlatRange& range : ranges) {
      const auto part = [&](const TensorView& flat) { return flat.rows(range.begin_elems, range.num_elems); };
      const TensorView working_copy = registry_.has_working_copies()
                                          ? part(registry_.weights())
                                          : TensorView(nullptr, registry_.weights().dtype, {0}, stream.device());
      adamw(part(registry_.master()), working_copy, part(registry_.gradients()), part(exp_avg_), part(exp_avg_sq_),
            squared_norm, settings, stream);
    }
  };
  settings.weight_decay = config_.weight_decay;
  update_ranges(decayed_);
  settings.weight_decay = 0;
  update_ranges(plain_);
}

}  // namespace potato
