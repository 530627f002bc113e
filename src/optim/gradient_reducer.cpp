#include "potato/optim/gradient_reducer.hpp"

#include <algorithm>

#include "potato/kernels/elementwise.hpp"

namespace potato {

GradientReducer::GradientReducer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute,
                                 Stream& communication, Arena& buffers, Options options)
    : registry_(registry),
      grid_(grid),
      compute_(compute),
      communication_(communication),
      buffers_(buffers),
      options_(options),
      buckets_of_unit_(static_cast<std::size_t>(registry.num_units())) {
  for (int i = 0; i < static_cast<int>(registry_.buckets().size()); ++i) {
    states_.emplace_back();
    for (const int unit : registry_.bucket(i).units) buckets_of_unit_[static_cast<std::size_t>(unit)].push_back(i);
  }
  const DType own_dtype = compute_dtype(registry_.options().dtype);
  if (options_.dtype != own_dtype && grid_.data->num_ranks() > 1) {
    std::int64_t most_elems = 0;
    for (const Bucket& bucket : registry_.buckets()) most_elems = std::max(most_elems, bucket.num_elems);
    rounded_ = Tensor(buffers, options_.dtype, {most_elems});
  }
  in_flight_.reserve(registry_.buckets().size() + 1);
  registry_.set_bucket_hook([this](int bucket) { on_ready(bucket); });
}

void GradientReducer::begin_step(std::int64_t num_micro_batches) {
  num_micro_batches_ = num_micro_batches;
  for (State& of : states_) of.num_reduced = 0;
  registry_.begin_step(num_micro_batches, compute_);
}

void GradientReducer::enter(int unit) {
  if (!registry_.shards_gradients()) return;
  bool takes_buffer = false;
  for (const int bucket : buckets_of_unit_[static_cast<std::size_t>(unit)]) {
    State& of = state(bucket);
    if (registry_.accumulates_whole_step(bucket) || of.buffer.is_held()) continue;
    if (!takes_buffer) retire_before(++round_ - 1);
    takes_buffer = true;
    const DType dtype = compute_dtype(registry_.options().dtype);
    of.buffer = Tensor(buffers_, dtype, {registry_.bucket(bucket).num_elems});
    registry_.begin_bucket(bucket, of.buffer, compute_);
  }
}

void GradientReducer::retire_before(std::int64_t round) {
  std::size_t num_old = 0;
  while (num_old < in_flight_.size() && in_flight_[num_old].round < round) {
    wait(state(in_flight_[num_old].bucket).reduced);
    ++num_old;
  }
  in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<std::ptrdiff_t>(num_old));
}

void GradientReducer::wait(Event& event) {
  wait_timer_.start(compute_);
  compute_.wait(event);
  wait_timer_.stop(compute_);
}

bool GradientReducer::waits_for_peers(int index) const {
  return registry_.bucket(index).sharing == Sharing::tied && grid_.embedding->num_ranks() > 1;
}

void GradientReducer::on_ready(int bucket) {
  if (!registry_.accumulates_whole_step(bucket)) {
    reduce_into_shard(bucket);
  } else if (options_.overlap && !waits_for_peers(bucket)) {
    reduce(bucket);
  }
}

void GradientReducer::sum_over_tensor_ranks(int index, TensorView gradients) {
  if (registry_.bucket(index).sharing != Sharing::replicated || !options_.sequence_parallel) return;
  grid_.tensor->all_reduce(gradients, ReduceOp::sum, compute_);
}

void GradientReducer::start_reduction(int index) {
  compute_.record(state(index).ready);
  communication_.wait(state(index).ready);
}

void GradientReducer::reduce_scatter(TensorView gradients, TensorView shard) {
  if (!rounded_.is_held()) return grid_.data->reduce_scatter(gradients, shard, communication_);
  const TensorView whole = rounded_.view().rows(0, gradients.num_elems());
  const TensorView part = whole.rows(grid_.data->rank() * shard.num_elems(), shard.num_elems());
  convert(gradients, whole, communication_);
  grid_.data->reduce_scatter(whole, part, communication_);
  convert(part, shard, communication_);
}

void GradientReducer::all_reduce(TensorView gradients) {
  if (!rounded_.is_held()) return grid_.data->all_reduce(gradients, ReduceOp::sum, communication_);
  const TensorView whole = rounded_.view().rows(0, gradients.num_elems());
  convert(gradients, whole, communication_);
  grid_.data->all_reduce(whole, ReduceOp::sum, communication_);
  convert(whole, gradients, communication_);
}

void GradientReducer::reduce(int index) {
  ++state(index).num_reduced;
  const TensorView gradients = registry_.bucket_gradients(index);
  sum_over_tensor_ranks(index, gradients);
  const bool is_tied = waits_for_peers(index);
  if (grid_.data->num_ranks() == 1 && !is_tied) return;
  start_reduction(index);
  if (registry_.shards_optimizer()) {
    reduce_scatter(gradients, registry_.gradient_shard(index));
  } else {
    all_reduce(gradients);
  }
  if (is_tied) grid_.embedding->all_reduce(registry_.gradient_shard(index), ReduceOp::sum, communication_);
}

void GradientReducer::reduce_into_shard(int index) {
  State& of = state(index);
  const TensorView gradients = of.buffer.view();
  const TensorView shard = registry_.gradient_shard(index);
  sum_over_tensor_ranks(index, gradients);
  start_reduction(index);
  if (of.num_reduced == 0) {
    reduce_scatter(gradients, shard);
  } else {
    const TensorView part = registry_.shard_of(index, gradients);
    reduce_scatter(gradients, part);
    add_to(part, shard, communication_);
  }
  communication_.record(of.reduced);
  ++of.num_reduced;
  in_flight_.push_back({std::move(of.buffer), index, round_});
  if (!options_.overlap) retire_before(round_ + 1);
}

void GradientReducer::finish_step() {
  for (int i = 0; i < static_cast<int>(registry_.buckets().size()); ++i) {
    if (!registry_.accumulates_whole_step(i)) {
      PC_CHECK(state(i).num_reduced == num_micro_batches_, "bucket ", i, " was reduced ", state(i).num_reduced,
               " times in ", num_micro_batches_, " micro-batches");
      continue;
    }
    PC_CHECK(registry_.bucket(i).num_ready == registry_.bucket(i).parameters.size(), "a gradient was not accumulated");
    if (!options_.overlap || waits_for_peers(i)) reduce(i);
  }
  communication_.record(done_);
  wait(done_);
  in_flight_.clear();
}

std::vector<ShardRange> ranges_in_norm(const ParameterRegistry& registry, const GridCommunicators& grid) {
  if (grid.at.data != 0 && !registry.shards_optimizer()) return {};
  return registry.shard_ranges([](const Parameter& parameter) { return parameter.spec.is_owner; });
}

void add_squared_norm_of(const ParameterRegistry& registry, const std::vector<ShardRange>& ranges, double weight,
                         TensorView result, Stream& stream) {
  for (const ShardRange& range : ranges) {
    add_squared_norm(registry.gradient_shard(range.bucket).rows(range.begin_elems, range.num_elems), weight, result,
                     stream);
  }
}

}  // namespace potato
