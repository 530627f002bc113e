#include "potato/train/engine.hpp"

#include <algorithm>
#include <cmath>

#include "potato/core/clock.hpp"
#include "potato/kernels/elementwise.hpp"
#include "potato/pipeline/check.hpp"

namespace potato {

namespace {

Schedule make_schedule(const Config& config, int num_stages, int num_micro_batches) {
  switch (config.parallel.schedule) {
    case PipelineSchedule::gpipe:
      return gpipe_schedule(num_stages, num_micro_batches);
    case PipelineSchedule::one_f_one_b:
      return one_f_one_b_schedule(num_stages, num_micro_batches);
    case PipelineSchedule::interleaved:
      return interleaved_schedule(num_stages, num_micro_batches, static_cast<int>(config.parallel.virtual_chunks));
  }
  throw Error("unknown schedule");
}

// Forward passes only, for evaluation: micro-batch by micro-batch through all chunks.
std::vector<Pass> forward_only(int num_micro_batches, int num_chunks) {
  std::vector<Pass> passes;
  for (int micro_batch = 0; micro_batch < num_micro_batches; ++micro_batch) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) passes.push_back({PassKind::forward, micro_batch, chunk});
  }
  return passes;
}

StreamOptions stream_options(const Config& config, const GridCommunicators& grid, const char* name,
                             const std::function<void(std::exception_ptr)>& on_error) {
  StreamOptions options;
  options.name = name;
  options.threads = static_cast<int>(std::max<std::int64_t>(1, config.run.threads));
  options.random_delay_us = config.run.debug_stream_delay_us;
  options.delay_seed = static_cast<std::uint64_t>(config.run.seed + 1000 * grid_rank(grid.shape, grid.at));
  options.on_error = on_error;
  return options;
}

}  // namespace

Engine::Engine(const Config& config, GridCommunicators grid, Device device, const OwnerBytes& capacity,
               const std::function<void(std::exception_ptr)>& on_stream_error)
    : config_(config),
      grid_(std::move(grid)),
      device_(device),
      dtype_(config.precision.dtype == Precision::fp64 ? DType::f64 : DType::f32),
      compute_(device, stream_options(config, grid_, "compute", on_stream_error)),
      communication_(device, stream_options(config, grid_, "communication", on_stream_error)),
      num_micro_batches_(potato::num_micro_batches(config, grid_.shape)),
      schedule_(make_schedule(config, static_cast<int>(grid_.shape.pipeline), static_cast<int>(num_micro_batches_))),
      forward_passes_(
          forward_only(static_cast<int>(num_micro_batches_), static_cast<int>(config.parallel.virtual_chunks))) {
  for (std::size_t i = 0; i < owner_names.size(); ++i) arenas_.emplace_back(device, owner_names[i], capacity[i]);
  PC_CHECK(schedule_.num_chunks == config.parallel.virtual_chunks, "the schedule leaves chunks out");
  const ScheduleReport report = check_schedule(schedule_);
  PC_CHECK(report.ok(), report.problems.empty() ? "" : report.problems.front());
  const std::int64_t max_alive = report.max_alive[static_cast<std::size_t>(grid_.at.pipeline)];

  const LayerContext ctx{.stream = compute_,
                         .activations = arena(Owner::activations),
                         .tensor = *grid_.tensor,
                         .registry = registry_,
                         .dtype = dtype_,
                         .sequence_parallel = config.parallel.sequence,
                         .recompute = config.train.recompute,
                         .dropout = config.model.dropout,
                         .seed = static_cast<std::uint64_t>(config.run.seed)};
  stage_.emplace(ctx, config_, grid_, max_alive);
  registry_.allocate(arena(Owner::parameters), arena(Owner::gradients), dtype_, config.parallel.bucket_size);
  registry_.initialize(static_cast<std::uint64_t>(config.run.seed));
  optimizer_.emplace(config_.optimizer, registry_, arena(Owner::optimizer), compute_);
  reducer_.emplace(registry_, grid_, compute_, communication_, config.parallel.sequence,
                   config.parallel.overlap_grad_reduce);
  executor_.emplace(*grid_.pipeline, compute_, static_cast<int>(config.parallel.virtual_chunks));

  Arena& buffers = arena(Owner::buffers);
  const std::int64_t batch = config.train.micro_batch_size;
  const std::int64_t num_tokens = batch * config.train.sequence_length;
  tokens_ = Tensor(buffers, DType::i32, {num_batch_buffers, num_micro_batches_, num_tokens});
  targets_ = Tensor(buffers, DType::i32, {num_batch_buffers, num_micro_batches_, num_tokens});
  scalars_ = Tensor(buffers, DType::f64, {2});
  next_ = Tensor(buffers, DType::i32, {batch});
  logits_ = Tensor(buffers, dtype_, {grid_.shape.tensor, batch, stage_->vocabulary().num_rows});
  fill(scalars_, 0, compute_);
  micro_batches_.resize(static_cast<std::size_t>(num_micro_batches_));
  chosen_.resize(static_cast<std::size_t>(batch));
  row_logits_.resize(static_cast<std::size_t>(config.model.vocab_size));
  synchronize();
}

Engine::~Engine() = default;

Engine::BatchBuffer Engine::batch_buffer(int buffer) const {
  const std::int64_t offset = buffer * tokens_.view().num_elems() / num_batch_buffers;
  return {static_cast<std::int32_t*>(tokens_.view().data) + offset,
          static_cast<std::int32_t*>(targets_.view().data) + offset};
}

std::int64_t Engine::sample_of_row(std::int64_t first_sample, std::int64_t row) const {
  return first_sample + grid_.at.data * num_micro_batches_ * config_.train.micro_batch_size + row;
}

void Engine::set_micro_batches(int buffer, std::int64_t first_sample, bool training, double gradient_scale) {
  const auto of_buffer = [&](const Tensor& tensor, std::int64_t i) {
    return tensor.view()
        .rows(buffer, 1)
        .reshaped({num_micro_batches_, tensor.view().dim(2)})
        .rows(i, 1)
        .reshaped({tensor.view().dim(2)});
  };
  for (std::int64_t i = 0; i < num_micro_batches_; ++i) {
    MicroBatch& micro_batch = micro_batches_[static_cast<std::size_t>(i)];
    micro_batch.batch = config_.train.micro_batch_size;
    micro_batch.sequence = config_.train.sequence_length;
    micro_batch.first_sample =
        static_cast<std::uint64_t>(sample_of_row(first_sample, i * config_.train.micro_batch_size));
    micro_batch.tokens = of_buffer(tokens_, i);
    micro_batch.targets = of_buffer(targets_, i);
    micro_batch.training = training;
    micro_batch.gradient_scale = gradient_scale;
    micro_batch.loss_sum = scalars_.view().rows(0, 1);
    micro_batch.logits_position = -1;
  }
  stage_->set_micro_batches(micro_batches_);
}

void Engine::enqueue_step(int buffer, std::int64_t first_sample, std::int64_t num_targets, double learning_rate,
                          std::int64_t update) {
  PC_CHECK(num_targets > 0, "a step without counted targets");
  num_targets_ = num_targets;
  fill(scalars_, 0, compute_);
  set_micro_batches(buffer, first_sample, true, 1.0 / static_cast<double>(num_targets));
  reducer_->begin_step(num_micro_batches_);
  executor_->run(schedule_.stages[static_cast<std::size_t>(grid_.at.pipeline)], *stage_);
  reducer_->finish_step();
  compute_.enqueue([start = &optimizer_start_s_] { *start = now_s(); });
  // The loss is the same on all tensor ranks: one of them brings it.
  if (grid_.at.tensor != 0) fill(scalars_.view().rows(0, 1), 0, compute_);
  const TensorView squared_norm = scalars_.view().rows(1, 1);
  add_owned_squared_norm(registry_, grid_, squared_norm, compute_);
  grid_.world->all_reduce(scalars_, ReduceOp::sum, compute_);
  optimizer_->step(learning_rate, update, squared_norm, compute_);
  compute_.enqueue([start = &optimizer_start_s_, total = &optimizer_s_] { *total += now_s() - *start; });
}

StepResult Engine::finish_step() {
  synchronize();
  if (device_.kind == DeviceKind::dry) return {};
  const auto* scalars = scalars_.view().as<double>();
  return {scalars[0] / static_cast<double>(num_targets_), std::sqrt(scalars[1])};
}

double Engine::evaluate(int buffer, std::int64_t first_sample) {
  fill(scalars_, 0, compute_);
  set_micro_batches(buffer, first_sample, false, 0);
  executor_->run(forward_passes_, *stage_);
  if (grid_.at.tensor != 0) fill(scalars_, 0, compute_);
  grid_.world->all_reduce(scalars_, ReduceOp::sum, compute_);
  synchronize();
  return device_.kind == DeviceKind::dry ? 0 : scalars_.view().as<double>()[0];
}

const std::vector<std::int32_t>& Engine::next_tokens(
    std::int64_t length, const std::function<std::int32_t(std::int64_t, const double*, std::int64_t)>& choose) {
  set_micro_batches(0, 0, false, 0);
  micro_batches_[0].logits_position = length - 1;
  const std::span<const Pass> passes(forward_passes_.data(), static_cast<std::size_t>(config_.parallel.virtual_chunks));
  executor_->run(passes, *stage_);
  if (grid_.is_last_stage()) {
    const Tensor local = stage_->take_logits();
    grid_.tensor->all_gather(local, logits_, compute_);
    synchronize();
    if (device_.kind != DeviceKind::dry) {
      const VocabularyShard& shard = stage_->vocabulary();
      const std::int64_t batch = config_.train.micro_batch_size;
      auto* next = next_.view().as<std::int32_t>();
      dispatch_real(dtype_, [&](auto zero) {
        const auto* logits = logits_.view().as<decltype(zero)>();
        for (std::int64_t row = 0; row < batch; ++row) {
          for (std::int64_t token = 0; token < config_.model.vocab_size; ++token) {
            const std::int64_t rank = token / shard.num_rows;
            row_logits_[static_cast<std::size_t>(token)] =
                static_cast<double>(logits[(rank * batch + row) * shard.num_rows + token % shard.num_rows]);
          }
          next[row] = choose(row, row_logits_.data(), config_.model.vocab_size);
        }
      });
    }
  }
  grid_.pipeline->broadcast(next_, static_cast<int>(grid_.shape.pipeline) - 1, compute_);
  synchronize();
  if (device_.kind != DeviceKind::dry) {
    const auto* next = next_.view().as<std::int32_t>();
    std::copy(next, next + chosen_.size(), chosen_.begin());
  }
  return chosen_;
}

void Engine::synchronize() {
  compute_.synchronize();
  communication_.synchronize();
}

OwnerBytes Engine::peak_bytes() const {
  OwnerBytes bytes{};
  std::transform(arenas_.begin(), arenas_.end(), bytes.begin(), [](const Arena& a) { return a.peak_bytes(); });
  return bytes;
}

OwnerBytes Engine::capacity_bytes() const {
  OwnerBytes bytes{};
  std::transform(arenas_.begin(), arenas_.end(), bytes.begin(), [](const Arena& a) { return a.capacity_bytes(); });
  return bytes;
}

PhaseTimes Engine::take_times() {
  PhaseTimes total;
  total.forward_s = stage_->times().forward_s;
  total.backward_s = stage_->times().backward_s;
  total.tensor_comm_s = grid_.tensor->stats().collective_s;
  total.data_comm_s = grid_.data->stats().collective_s + grid_.embedding->stats().collective_s;
  total.bubble_s = grid_.pipeline->stats().wait_s;
  total.optimizer_s = optimizer_s_;
  PhaseTimes since = total;
  since.forward_s -= reported_.forward_s;
  since.backward_s -= reported_.backward_s;
  since.tensor_comm_s -= reported_.tensor_comm_s;
  since.data_comm_s -= reported_.data_comm_s;
  since.bubble_s -= reported_.bubble_s;
  since.optimizer_s -= reported_.optimizer_s;
  reported_ = total;
  return since;
}

OwnerBytes planned_bytes(const Config& config, const GridShape& shape, int world_rank) {
  Engine dry(config, make_dry_communicators(shape, world_rank), Device{DeviceKind::dry, 0}, {}, {});
  dry.enqueue_step(0, 0, 1, 0, 1);
  dry.finish_step();
  dry.evaluate(0, 0);
  dry.next_tokens(1, [](std::int64_t, const double*, std::int64_t) { return 0; });
  return dry.peak_bytes();
}

}  // namespace potato
