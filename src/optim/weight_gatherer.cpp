#include "potato/optim/weight_gatherer.hpp"

#include <utility>

namespace potato {

WeightGatherer::WeightGatherer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute,
                               Stream& communication, Arena& memory, Options options)
    : registry_(registry),
      grid_(grid),
      compute_(compute),
      communication_(communication),
      memory_(memory),
      options_(options) {
  for (int i = 0; i < registry.num_units(); ++i) units_.emplace_back();
  for (int i = 0; i < static_cast<int>(registry.buckets().size()); ++i) {
    buckets_.emplace_back();
    for (const int index : registry.bucket(i).units) {
      Unit& unit = units_[static_cast<std::size_t>(index)];
      unit.buckets.push_back(i);
      unit.memory.emplace_back();
      unit.num_elems += registry.bucket(i).num_elems;
    }
  }
}

void WeightGatherer::updated(int bucket) {
  if (!registry_.shards_optimizer()) return;
  BucketState& state = buckets_[static_cast<std::size_t>(bucket)];
  compute_.record(state.updated);
  state.is_updated = true;
}

void WeightGatherer::gather_updated() {
  for (const int unit : uses_) {
    for (const int bucket : units_[static_cast<std::size_t>(unit)].buckets) {
      BucketState& state = buckets_[static_cast<std::size_t>(bucket)];
      if (!std::exchange(state.is_updated, false)) continue;
      communication_.wait(state.updated);
      grid_.data->all_gather(registry_.weight_shard(bucket), registry_.bucket_weights(bucket), communication_);
      communication_.record(state.gathered);
      state.is_under_way = true;
      if (!options_.overlap) wait_for_bucket(bucket);
    }
  }
}

void WeightGatherer::wait_for_bucket(int bucket) {
  BucketState& state = buckets_[static_cast<std::size_t>(bucket)];
  if (std::exchange(state.is_under_way, false)) wait(state.gathered);
}

void WeightGatherer::begin(std::span<const int> uses) {
  uses_ = uses;
  entered_ = 0;
  requested_ = 0;
  if (registry_.shards_optimizer() && !registry_.shards_weights()) gather_updated();
}

void WeightGatherer::gather(Unit& unit) {
  communication_.wait(released_);
  for (std::size_t i = 0; i < unit.buckets.size(); ++i) {
    const int bucket = unit.buckets[i];
    communication_.wait(buckets_[static_cast<std::size_t>(bucket)].updated);
    unit.memory[i] = Tensor(memory_, registry_.options().dtype, {registry_.bucket(bucket).num_elems});
    const TensorView whole = unit.memory[i].view();
    TensorView shard = registry_.weight_shard(bucket);
    if (registry_.options().weights_on_host) {
      const TensorView place = registry_.shard_of(bucket, whole);
      communication_.transfer(place.data, shard.data, shard.num_bytes());
      shard = place;
    }
    grid_.data->all_gather(shard, whole, communication_);
  }
  communication_.record(unit.gathered);
}

void WeightGatherer::request(std::size_t position) {
  Unit& unit = units_[static_cast<std::size_t>(uses_[position])];
  if (unit.num_uses++ == 0) gather(unit);
}

void WeightGatherer::wait(Event& event) {
  wait_timer_.start(compute_);
  compute_.wait(event);
  wait_timer_.stop(compute_);
}

void WeightGatherer::enter(int index) {
  Unit& unit = units_[static_cast<std::size_t>(index)];
  if (!registry_.shards_weights()) {
    for (const int bucket : unit.buckets) wait_for_bucket(bucket);
    return;
  }
  PC_CHECK(entered_ < uses_.size() && uses_[entered_] == index, "unit ", index, " is entered out of order");
  if (requested_ == entered_) request(requested_++);
  wait(unit.gathered);
  for (std::size_t i = 0; i < unit.buckets.size(); ++i) registry_.place_weights(unit.buckets[i], unit.memory[i]);
  ++entered_;
  if (!options_.overlap) return;
  std::int64_t ahead_elems = 0;
  for (std::size_t i = entered_; i < uses_.size(); ++i) {
    ahead_elems += units_[static_cast<std::size_t>(uses_[i])].num_elems;
    if (i > entered_ && ahead_elems > options_.ahead_elems) break;
    if (i == requested_) request(requested_++);
  }
}

void WeightGatherer::leave(int index) {
  if (!registry_.shards_weights()) return;
  Unit& unit = units_[static_cast<std::size_t>(index)];
  PC_CHECK(unit.num_uses > 0, "unit ", index, " is left twice");
  if (--unit.num_uses > 0) return;
  compute_.record(released_);
  for (Tensor& memory : unit.memory) memory.reset();
}

void WeightGatherer::end() {
  if (!registry_.shards_weights()) return;
  PC_CHECK(entered_ == uses_.size(), entered_, " of ", uses_.size(), " units were entered");
  uses_ = {};
}

}  // namespace potato
