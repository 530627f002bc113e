#include "potato/optim/gradient_reducer.hpp"

#include "potato/kernels/elementwise.hpp"

namespace potato {

GradientReducer::GradientReducer(ParameterRegistry& registry, const GridCommunicators& grid, Stream& compute,
                                 Stream& communication, bool sequence_parallel, bool overlap)
    : registry_(registry),
      grid_(grid),
      compute_(compute),
      communication_(communication),
      sequence_parallel_(sequence_parallel),
      overlap_(overlap) {
  for (std::size_t i = 0; i < registry_.buckets().size(); ++i) ready_.emplace_back();
  registry_.set_bucket_hook([this](int bucket) {
    if (overlap_ && !waits_for_peers(bucket)) reduce(bucket);
  });
}

void GradientReducer::begin_step(std::int64_t num_micro_batches) { registry_.begin_step(num_micro_batches, compute_); }

bool GradientReducer::waits_for_peers(int index) const {
  return registry_.buckets()[static_cast<std::size_t>(index)].sharing == Sharing::tied &&
         grid_.embedding->num_ranks() > 1;
}

void GradientReducer::reduce(int index) {
  const Bucket& bucket = registry_.buckets()[static_cast<std::size_t>(index)];
  const TensorView gradients = registry_.gradients().rows(bucket.begin_elems, bucket.num_elems);
  if (bucket.sharing == Sharing::replicated && sequence_parallel_) {
    grid_.tensor->all_reduce(gradients, ReduceOp::sum, compute_);
  }
  const bool is_tied = waits_for_peers(index);
  if (grid_.data->num_ranks() == 1 && !is_tied) return;
  Event& ready = ready_[static_cast<std::size_t>(index)];
  compute_.record(ready);
  communication_.wait(ready);
  grid_.data->all_reduce(gradients, ReduceOp::sum, communication_);
  if (is_tied) grid_.embedding->all_reduce(gradients, ReduceOp::sum, communication_);
}

void GradientReducer::finish_step() {
  for (const Bucket& bucket : registry_.buckets()) {
    PC_CHECK(bucket.num_ready == bucket.num_parameters, "a gradient was not accumulated");
  }
  for (int i = 0; i < static_cast<int>(registry_.buckets().size()); ++i) {
    if (!overlap_ || waits_for_peers(i)) reduce(i);
  }
  communication_.record(done_);
  compute_.wait(done_);
}

std::vector<FlatRange> ranges_in_norm(const ParameterRegistry& registry, const GridCommunicators& grid) {
  if (grid.at.data != 0) return {};
  return registry.ranges([](const Parameter& parameter) { return parameter.spec.is_owner; });
}

void add_squared_norm_of(const ParameterRegistry& registry, const std::vector<FlatRange>& ranges, TensorView result,
                         Stream& stream) {
  for (const FlatRange& range : ranges) {
    add_squared_norm(registry.gradients().rows(range.begin_elems, range.num_elems), 1, result, stream);
  }
}

}  // namespace potato
