#include "potato/optim/optimizer.hpp"

#include <algorithm>

#include "potato/kernels/elementwise.hpp"

namespace potato {

namespace {

// Of an update on the host: large enough for full copy rates, small beside the state.
constexpr std::int64_t most_piece_elems = std::int64_t{32} << 20;

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, ParameterRegistry& registry, Arena& memory, Stream& compute,
                     const StreamOptions& lanes)
    : config_(config),
      registry_(registry),
      ranges_(registry.buckets().size()),
      exp_avg_(memory, compute_dtype(registry.options().dtype), {registry.num_shard_elems()}),
      exp_avg_sq_(memory, compute_dtype(registry.options().dtype), {registry.num_shard_elems()}) {
  for (const bool decays : {true, false}) {
    const auto chosen = [&](const Parameter& parameter) { return parameter.spec.decay == decays; };
    for (const ShardRange& range : registry.shard_ranges(chosen)) {
      ranges_[static_cast<std::size_t>(range.bucket)].push_back({range, decays ? config.weight_decay : 0});
    }
  }
  zero(exp_avg_, compute);
  zero(exp_avg_sq_, compute);
  if (!registry.options().master_on_host) return;
  for (int i = 0; i < static_cast<int>(registry.buckets().size()); ++i) {
    piece_elems_ = std::max(piece_elems_, std::min(most_piece_elems, registry.master_shard(i).num_elems()));
  }
  for (int i = 0; i < 2; ++i) {
    Lane& lane = lanes_.emplace_back(compute.device(), lanes);
    lane.gradients = Tensor(memory, compute_dtype(registry.options().dtype), {piece_elems_});
    if (has_working_copy()) lane.weights = Tensor(memory, registry.options().dtype, {piece_elems_});
  }
}

AdamWStep Optimizer::settings_of(const Update& update, double weight_decay) const {
  AdamWStep settings;
  settings.learning_rate = update.learning_rate;
  settings.beta1 = config_.beta1;
  settings.beta2 = config_.beta2;
  settings.eps = config_.eps;
  settings.weight_decay = weight_decay;
  settings.step = update.number;
  settings.max_norm = config_.gradient_clipping;
  settings.gradient_scale = 1 / update.loss_scale;
  settings.skip_nonfinite = update.skip_nonfinite;
  return settings;
}

void Optimizer::step(const Update& update, Stream& compute, const std::function<void(int)>& on_updated) {
  if (!lanes_.empty()) {
    host_timer_.start(compute);
    compute.record(ready_);
    for (Lane& lane : lanes_) lane.stream.wait(ready_);
  }
  for (int i = 0; i < static_cast<int>(ranges_.size()); ++i) {
    for (const DecayRange& part : ranges_[static_cast<std::size_t>(i)]) {
      if (lanes_.empty()) {
        update_on_device(i, part, update, compute);
      } else {
        update_on_host(i, part, update);
      }
    }
    if (lanes_.empty() && registry_.options().weights_on_host) registry_.publish(i, compute);
    for (Lane& lane : lanes_) {
      lane.stream.record(lane.done);
      compute.wait(lane.done);
    }
    on_updated(i);
  }
  if (!lanes_.empty()) host_timer_.stop(compute);
}

void Optimizer::update_on_device(int bucket, const DecayRange& part, const Update& update, Stream& compute) {
  const auto rows = [&](const TensorView& shard) { return shard.rows(part.range.begin_elems, part.range.num_elems); };
  const bool has_copy = has_working_copy() && !registry_.options().weights_on_host;
  const TensorView working_copy = has_copy ? rows(registry_.weight_shard(bucket))
                                           : TensorView(nullptr, registry_.options().dtype, {0}, compute.device());
  adamw(rows(registry_.master_shard(bucket)), working_copy, rows(registry_.gradient_shard(bucket)),
        rows(registry_.shard_in(bucket, exp_avg_)), rows(registry_.shard_in(bucket, exp_avg_sq_)), update.squared_norm,
        settings_of(update, part.weight_decay), compute);
}

void Optimizer::update_on_host(int bucket, const DecayRange& part, const Update& update) {
  const AdamWStep settings = settings_of(update, part.weight_decay);
  for (std::int64_t done = 0; done < part.range.num_elems; done += piece_elems_) {
    Lane& lane = lanes_[lane_];
    lane_ = 1 - lane_;
    update_piece(lane, bucket, part.range.begin_elems + done, std::min(piece_elems_, part.range.num_elems - done),
                 settings, update);
  }
}

void Optimizer::update_piece(Lane& lane, int bucket, std::int64_t begin, std::int64_t count, const AdamWStep& settings,
                             const Update& update) {
  Stream& stream = lane.stream;
  const auto rows = [&](const TensorView& shard) { return shard.rows(begin, count); };
  const TensorView gradients = lane.gradients.view().rows(0, count);
  const TensorView master = rows(registry_.master_shard(bucket));
  const TensorView weights = rows(registry_.weight_shard(bucket));
  const bool writes_weights = has_working_copy() && registry_.options().weights_on_host;
  const TensorView working_copy = writes_weights       ? weights
                                  : has_working_copy() ? lane.weights.view().rows(0, count)
                                                       : TensorView(nullptr, weights.dtype, {0}, master.device);
  stream.transfer(gradients.data, rows(registry_.gradient_shard(bucket)).data, gradients.num_bytes());
  stream.wait(lanes_[lane_].updated);  // the pieces' arithmetic takes turns: each uses all threads
  adamw_on_host(master, working_copy, gradients, rows(registry_.shard_in(bucket, exp_avg_)),
                rows(registry_.shard_in(bucket, exp_avg_sq_)), update.host_norm, settings, stream);
  stream.record(lane.updated);
  if (!writes_weights) {
    stream.transfer(weights.data, has_working_copy() ? working_copy.data : master.data, weights.num_bytes());
  }
}

}  // namespace potato
