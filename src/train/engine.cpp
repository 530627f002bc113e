#include "potato/train/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <thread>

#include "potato/kernels/attention.hpp"
#include "potato/kernels/elementwise.hpp"
#include "potato/pipeline/check.hpp"

namespace potato {

namespace {

// In a checkpoint, in the order of Engine::state_blocks().
constexpr std::array<const char*, 3> state_prefixes = {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"};

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

DType storage_dtype(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return DType::f64;
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::f16;
    case Precision::fp32:
    case Precision::tf32:
      return DType::f32;
  }
  throw Error("unknown precision");
}

DType reduction_dtype(const PrecisionConfig& precision) {
  switch (precision.gradient_dtype) {
    case GradientDType::bf16:
      return DType::bf16;
    case GradientDType::fp16:
      return DType::f16;
    case GradientDType::fp32:
      return compute_dtype(storage_dtype(precision.dtype));
  }
  throw Error("unknown gradient dtype");
}

// Scratch of the kernels on a GPU: cuBLASLt's and partial sums, or attention's.
std::int64_t workspace_bytes(const Config& config, const GridShape& shape) {
  constexpr std::int64_t least = std::int64_t{64} << 20;
  AttentionShape attention;
  attention.batch = config.train.micro_batch_size;
  attention.sequence = config.train.sequence_length;
  attention.num_heads = config.model.num_heads / shape.tensor;
  attention.num_kv_heads = attention.num_heads;
  attention.head_dim = config.model.hidden_size / config.model.num_heads;
  attention.kernel = config.kernels.attention;
  attention.deterministic = config.run.deterministic;
  return std::max(least, attention_workspace_bytes(attention, storage_dtype(config.precision.dtype),
                                                   Dropout{config.model.dropout, {}}));
}

StreamOptions stream_options(const Config& config, const GridCommunicators& grid, const char* name,
                             const std::function<void(std::exception_ptr)>& on_error) {
  StreamOptions options;
  options.name = name;
  options.threads = static_cast<int>(std::max<std::int64_t>(1, config.run.threads));
  options.random_delay_us = config.run.debug_stream_delay_us;
  options.delay_seed = static_cast<std::uint64_t>(config.run.seed + 1000 * grid_rank(grid.shape, grid.at));
  options.allow_tf32 = config.precision.dtype == Precision::tf32;
  options.workspace_bytes = 0;  // the engine's
  options.on_error = on_error;
  return options;
}

// Grows in the order in which backward comes to a parameter: layers from the last, in each as its storage is ordered.
std::int64_t backward_place(const ModelConfig& model, const Parameter& parameter) {
  constexpr std::string_view layer_prefix = "layers.";
  constexpr std::int64_t most_elems = std::int64_t{1} << 40;
  const std::string& name = parameter.spec.name;
  std::int64_t layers_before = 0;  // the head, and the weight that it shares
  if (name.starts_with(layer_prefix)) {
    layers_before = model.num_layers - std::stoll(name.substr(layer_prefix.size()));
  } else if (name.find("embed") != std::string::npos && parameter.spec.sharing != Sharing::tied) {
    layers_before = model.num_layers + 1;
  }
  return layers_before * most_elems + parameter.flat_offset_elems;
}

StorageOptions storage_options(const Config& config, const GridCommunicators& grid) {
  StorageOptions options;
  options.dtype = storage_dtype(config.precision.dtype);
  options.bucket_elems = config.zero.reduce_bucket_size;
  options.zero_stage = static_cast<int>(config.zero.stage);
  options.shard = grid.at.data;
  options.num_shards = static_cast<int>(grid.shape.data);
  options.replicated_apart = config.parallel.sequence;
  options.master_on_host = config.zero.offload_optimizer == OffloadTarget::cpu;
  options.weights_on_host = config.zero.offload_param == OffloadTarget::cpu;
  options.master_apart = options.master_on_host || options.weights_on_host;
  return options;
}

}  // namespace

Engine::Engine(const Config& config, GridCommunicators grid, Device device, const OwnerBytes& capacity,
               const std::function<void(std::exception_ptr)>& on_stream_error, FlightRecorder* recorder)
    : config_(config),
      grid_(std::move(grid)),
      device_(device),
      dtype_(storage_dtype(config.precision.dtype)),
      compute_(device, stream_options(config, grid_, "compute", on_stream_error)),
      communication_(device, stream_options(config, grid_, "communication", on_stream_error)),
      num_micro_batches_(potato::num_micro_batches(config, grid_.shape)),
      schedule_(make_schedule(config, static_cast<int>(grid_.shape.pipeline), static_cast<int>(num_micro_batches_))),
      forward_passes_(
          forward_only(static_cast<int>(num_micro_batches_), static_cast<int>(config.parallel.virtual_chunks))),
      loss_scaler_(config.precision) {
  for (std::size_t i = 0; i < owner_names.size(); ++i) {
    const auto owner = static_cast<Owner>(i);
    const bool is_beside = is_on_host(owner) && device.kind == DeviceKind::cuda;
    const bool pins = is_beside && (owner == Owner::host || config.zero.pin_memory);
    arenas_.emplace_back(is_beside ? Device{} : device, owner_names[i], capacity[i],
                         pins ? HostMemory::pinned : HostMemory::pageable);
  }
  PC_CHECK(schedule_.num_chunks == config.parallel.virtual_chunks, "the schedule leaves chunks out");
  const ScheduleReport report = check_schedule(schedule_);
  PC_CHECK(report.ok(), report.problems.empty() ? "" : report.problems.front());
  const std::int64_t max_alive = report.max_alive[static_cast<std::size_t>(grid_.at.pipeline)];

  if (target_kind(device) == DeviceKind::cuda) {
    workspace_ = Tensor(arena(Owner::workspace), DType::u8, {workspace_bytes(config, grid_.shape)});
    compute_.set_workspace(workspace_.view().data, workspace_.view().num_bytes());
  }
  const LayerContext ctx{.stream = compute_,
                         .activations = arena(Owner::activations),
                         .tensor = *grid_.tensor,
                         .registry = registry_,
                         .dtype = dtype_,
                         .sequence_parallel = config.parallel.sequence,
                         .recompute = config.train.recompute,
                         .attention = config.kernels.attention,
                         .deterministic = config.run.deterministic,
                         .dropout = config.model.dropout,
                         .seed = static_cast<std::uint64_t>(config.run.seed),
                         .recorder = recorder};
  for (Communicator* communicator : grid_.all()) communicator->set_recorder(recorder);
  stage_.emplace(ctx, config_, grid_, max_alive);
  const StorageOptions storage = storage_options(config, grid_);
  Arena& offloaded = arena(Owner::offloaded);
  registry_.allocate({storage.weights_on_host ? offloaded : arena(Owner::parameters), arena(Owner::gradients),
                      storage.master_on_host ? offloaded : arena(Owner::master)},
                     storage);
  registry_.initialize(static_cast<std::uint64_t>(config.run.seed), compute_);
  norm_ranges_ = ranges_in_norm(registry_, grid_);
  optimizer_.emplace(config_.optimizer, registry_, storage.master_on_host ? offloaded : arena(Owner::moments), compute_,
                     stream_options(config, grid_, "offload", on_stream_error));
  const bool overlaps = config.zero.overlap_comm;
  reducer_.emplace(registry_, grid_, compute_, communication_, arena(Owner::gradients),
                   GradientReducer::Options{config.parallel.sequence, overlaps, reduction_dtype(config.precision)});
  gatherer_.emplace(registry_, grid_, compute_, communication_, arena(Owner::parameters),
                    WeightGatherer::Options{config.zero.allgather_bucket_size, overlaps});
  registry_.set_unit_hooks({[this](int unit, bool backward) {
                              gatherer_->enter(unit);
                              if (backward) reducer_->enter(unit);
                            },
                            [this](int unit) { gatherer_->leave(unit); }});
  for (const Pass& pass : schedule_.stages[static_cast<std::size_t>(grid_.at.pipeline)]) {
    stage_->append_uses(pass, training_uses_);
  }
  for (const Pass& pass : forward_passes_) stage_->append_uses(pass, evaluation_uses_);
  for (const Pass& pass : one_micro_batch()) stage_->append_uses(pass, sampling_uses_);
  shards_changed();
  if (config.checkpoint.async) {
    snapshots_.emplace(device, stream_options(config, grid_, "snapshot", on_stream_error));
    for (std::size_t i = 0; i < num_state_blocks; ++i) {
      const TensorView block = state_blocks()[i];
      state_copies_[i] = Tensor(arena(Owner::snapshot), block.dtype, block.shape);
      // Memory that was never touched is slow at first; a GPU's is pinned, and was.
      if (device.kind == DeviceKind::cpu) zero(state_copies_[i], *snapshots_);
    }
  }
  executor_.emplace(*grid_.pipeline, compute_, static_cast<int>(config.parallel.virtual_chunks));

  Arena& buffers = arena(Owner::buffers);
  Arena& host = arena(Owner::host);
  const std::int64_t batch = config.train.micro_batch_size;
  const std::int64_t num_tokens = num_micro_batches_ * batch * config.train.sequence_length;
  tokens_ = Mirrored(buffers, host, DType::i32, {num_batch_buffers, num_tokens});
  targets_ = Mirrored(buffers, host, DType::i32, {num_batch_buffers, num_tokens});
  scalars_ = Mirrored(buffers, host, DType::f64, {2 + num_requests});
  next_ = Mirrored(buffers, host, DType::i32, {batch});
  logits_ = Mirrored(buffers, host, dtype_, {grid_.shape.tensor, batch, stage_->vocabulary().num_rows});
  micro_batches_.resize(static_cast<std::size_t>(num_micro_batches_));
  chosen_.resize(static_cast<std::size_t>(batch));
  row_logits_.resize(static_cast<std::size_t>(config.model.vocab_size));
  synchronize();
}

// Members that the streams' work refers to end before the streams: first that work must be done.
Engine::~Engine() {
  for (Stream* stream : {&compute_, &communication_, snapshots_ ? &*snapshots_ : &compute_}) {
    try {
      stream->synchronize();
    } catch (const std::exception& error) {
      std::cerr << "engine: a stream ended with an error: " << error.what() << '\n';
    }
  }
}

Engine::BatchBuffer Engine::batch_buffer(int buffer) const {
  const std::int64_t offset = buffer * tokens_.host().dim(1);
  return {static_cast<std::int32_t*>(tokens_.host().data) + offset,
          static_cast<std::int32_t*>(targets_.host().data) + offset};
}

void Engine::send_batch(int buffer) {
  if (!needs_data()) return;
  tokens_.rows_to_device(buffer, 1, compute_);
  targets_.rows_to_device(buffer, 1, compute_);
}

std::int64_t Engine::sample_of_row(std::int64_t first_sample, std::int64_t row) const {
  return first_sample + grid_.at.data * num_micro_batches_ * config_.train.micro_batch_size + row;
}

void Engine::set_micro_batches(int buffer, std::int64_t first_sample, bool training, double gradient_scale) {
  const std::int64_t micro_batch_tokens = config_.train.micro_batch_size * config_.train.sequence_length;
  const auto of_buffer = [&](const Mirrored& mirrored, std::int64_t i) {
    const TensorView row = mirrored.device().rows(buffer, 1);
    return row.reshaped({row.num_elems()}).rows(i * micro_batch_tokens, micro_batch_tokens);
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
    micro_batch.loss_sum = scalars_.device().rows(0, 1);
    micro_batch.logits_position = -1;
  }
  stage_->set_micro_batches(micro_batches_);
}

void Engine::shards_changed() {
  for (int i = 0; i < static_cast<int>(registry_.buckets().size()); ++i) gatherer_->updated(i);
}

std::span<const Pass> Engine::one_micro_batch() const {
  return {forward_passes_.data(), static_cast<std::size_t>(config_.parallel.virtual_chunks)};
}

void Engine::run_passes(std::span<const Pass> passes, std::span<const int> uses) {
  gatherer_->begin(uses);
  executor_->run(passes, *stage_);
  gatherer_->end();
}

void Engine::enqueue_step(int buffer, std::int64_t first_sample, std::int64_t num_targets, double learning_rate,
                          std::int64_t update, bool overflows) {
  PC_CHECK(num_targets > 0, "a step without counted targets");
  num_targets_ = num_targets;
  const double loss_scale = loss_scaler_.scale();
  const TensorView& scalars = scalars_.device();
  fill(scalars, 0, compute_);
  send_requests(scalars);
  send_batch(buffer);
  const double gradient_scale = overflows ? std::numeric_limits<double>::infinity() : loss_scale;
  set_micro_batches(buffer, first_sample, true, gradient_scale / static_cast<double>(num_targets));
  reducer_->begin_step(num_micro_batches_);
  run_passes(schedule_.stages[static_cast<std::size_t>(grid_.at.pipeline)], training_uses_);
  reducer_->finish_step();
  optimizer_timer_.start(compute_);
  // The loss is the same on all tensor ranks: one of them brings it.
  if (grid_.at.tensor != 0) fill(scalars.rows(0, 1), 0, compute_);
  const TensorView squared_norm = scalars.rows(1, 1);
  add_squared_norm_of(registry_, norm_ranges_, 1 / (loss_scale * loss_scale), squared_norm, compute_);
  if (!std::exchange(skips_world_reduce_, false)) grid_.world->all_reduce(scalars, ReduceOp::sum, compute_);
  scalars_.to_host(compute_);
  Update settings;
  settings.learning_rate = learning_rate;
  settings.number = update;
  settings.loss_scale = loss_scale;
  settings.skip_nonfinite = skips_nonfinite();
  settings.squared_norm = squared_norm;
  settings.host_norm = scalars_.host().rows(1, 1);
  if (std::exchange(snapshot_pending_, false)) compute_.wait(snapshot_done_);
  optimizer_->step(settings, compute_, [this](int bucket) { gatherer_->updated(bucket); });
  optimizer_timer_.stop(compute_);
}

StepResult Engine::finish_step() {
  times_ += settle();
  if (device_.kind == DeviceKind::dry) return {};
  const auto* scalars = scalars_.host().as<double>();
  read_requests(scalars);
  StepResult result;
  result.loss = scalars[0] / static_cast<double>(num_targets_);
  result.grad_norm = std::sqrt(scalars[1]);
  result.loss_scale = loss_scaler_.scale();
  result.skipped = skips_nonfinite() && !std::isfinite(scalars[1]);
  loss_scaler_.update(result.skipped);
  return result;
}

double Engine::evaluate(int buffer, std::int64_t first_sample) {
  const TensorView& scalars = scalars_.device();
  fill(scalars, 0, compute_);
  send_requests(scalars);
  send_batch(buffer);
  set_micro_batches(buffer, first_sample, false, 0);
  run_passes(forward_passes_, evaluation_uses_);
  if (grid_.at.tensor != 0) fill(scalars.rows(0, 1), 0, compute_);
  grid_.world->all_reduce(scalars, ReduceOp::sum, compute_);
  scalars_.to_host(compute_);
  settle();
  if (device_.kind == DeviceKind::dry) return 0;
  read_requests(scalars_.host().as<double>());
  return scalars_.host().as<double>()[0];
}

void Engine::stall_compute() {
  compute_.enqueue([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
}

void Engine::send_requests(const TensorView& scalars) {
  for (int i = 0; i < num_requests; ++i) {
    if ((requests_ >> i & 1U) != 0) fill(scalars.rows(2 + i, 1), 1, compute_);
  }
}

void Engine::read_requests(const double* scalars) {
  agreed_requests_ = 0;
  for (int i = 0; i < num_requests; ++i) agreed_requests_ |= scalars[2 + i] > 0 ? 1U << i : 0U;
}

const std::vector<std::int32_t>& Engine::next_tokens(std::int64_t length, const ChooseToken& choose) {
  send_batch(0);
  set_micro_batches(0, 0, false, 0);
  micro_batches_[0].logits_position = length - 1;
  run_passes(one_micro_batch(), sampling_uses_);
  if (grid_.is_last_stage()) {
    const Tensor local = stage_->take_logits();
    grid_.tensor->all_gather(local, logits_.device(), compute_);
    logits_.to_host(compute_);
    synchronize();
    if (device_.kind != DeviceKind::dry) choose_tokens(choose);
    next_.to_device(compute_);
  }
  grid_.pipeline->broadcast(next_.device(), static_cast<int>(grid_.shape.pipeline) - 1, compute_);
  next_.to_host(compute_);
  settle();
  if (device_.kind != DeviceKind::dry) {
    const auto* next = next_.host().as<std::int32_t>();
    std::copy(next, next + chosen_.size(), chosen_.begin());
  }
  return chosen_;
}

void Engine::choose_tokens(const ChooseToken& choose) {
  const VocabularyShard& shard = stage_->vocabulary();
  const std::int64_t batch = config_.train.micro_batch_size;
  auto* next = next_.host().as<std::int32_t>();
  dispatch_float(dtype_, [&](auto zero) {
    using Stored = decltype(zero);
    const auto* logits = logits_.host().as<Stored>();
    for (std::int64_t row = 0; row < batch; ++row) {
      for (std::int64_t token = 0; token < config_.model.vocab_size; ++token) {
        const std::int64_t rank = token / shard.num_rows;
        const Stored logit = logits[(rank * batch + row) * shard.num_rows + token % shard.num_rows];
        row_logits_[static_cast<std::size_t>(token)] = static_cast<double>(static_cast<Compute<Stored>>(logit));
      }
      next[row] = choose(row, row_logits_.data(), config_.model.vocab_size);
    }
  });
}

void Engine::synchronize() {
  compute_.synchronize();
  communication_.synchronize();
}

TensorView Engine::in_host_memory(std::size_t block, const TensorView& part) const {
  if (!state_copies_[block].is_held()) return part;
  const auto offset_bytes = static_cast<const char*>(part.data) - static_cast<const char*>(state_blocks()[block].data);
  const TensorView copy = state_copies_[block].view();
  return {static_cast<char*>(copy.data) + offset_bytes, part.dtype, part.shape, copy.device};
}

bool Engine::copies_state() const noexcept {
  const bool is_on_gpu = target_kind(device_) == DeviceKind::cuda && !registry_.options().master_on_host;
  return is_on_gpu || config_.checkpoint.async;
}

std::vector<TensorGroup> Engine::copied_state(Stream& stream) {
  const auto blocks = state_blocks();
  const std::int64_t all_owned = registry_.num_owned_elems();
  std::vector<TensorGroup> groups;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const TensorView& block = blocks[i];
    if (copies_state()) {
      if (!state_copies_[i].is_held()) state_copies_[i] = Tensor(arena(Owner::snapshot), block.dtype, block.shape);
      stream.transfer(state_copies_[i].view().data, block.data, block.num_bytes());
    }
    TensorGroup& group = groups.emplace_back();
    group.prefix = state_prefixes[i];
    group.dtype = block.dtype;
    std::int64_t num_owned = 0;
    for (const OwnPiece& own : registry_.own_pieces()) {
      const int bucket = own.parameter->bucket;
      const TensorView shard = i == 0 ? registry_.master_shard(bucket) : registry_.shard_in(bucket, block);
      const TensorView values = shard.rows(own.piece.offset_elems, own.piece.num_elems());
      bool is_written = own.parameter->spec.is_owner;
      if (is_written && !registry_.shards_optimizer()) {
        // All data ranks hold the same: each writes about as much.
        is_written = num_owned * grid_.shape.data / all_owned == grid_.at.data;
        num_owned += own.piece.num_elems();
      }
      group.pieces.push_back({own.piece, in_host_memory(i, values), is_written});
    }
  }
  return groups;
}

std::vector<TensorGroup> Engine::fetch_state() {
  synchronize();
  if (snapshots_) snapshots_->synchronize();
  std::vector<TensorGroup> groups = copied_state(compute_);
  synchronize();
  return groups;
}

std::vector<TensorGroup> Engine::begin_snapshot() {
  PC_CHECK(snapshots_.has_value(), "snapshots need checkpoint.async");
  synchronize();
  std::vector<TensorGroup> groups = copied_state(*snapshots_);
  snapshots_->record(snapshot_done_);
  snapshot_pending_ = true;
  return groups;
}

void Engine::restore_state() {
  const auto blocks = state_blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!state_copies_[i].is_held()) continue;
    compute_.transfer(blocks[i].data, state_copies_[i].view().data, blocks[i].num_bytes());
  }
  registry_.refresh_weights(compute_);
  shards_changed();
  synchronize();
}

std::optional<std::pair<std::int64_t, std::string>> Engine::first_nonfinite_gradient() {
  synchronize();
  std::optional<std::pair<std::int64_t, std::string>> first;
  std::vector<char> bytes;
  for (const OwnPiece& own : registry_.own_pieces()) {
    const TensorView gradient =
        registry_.gradient_shard(own.parameter->bucket).rows(own.piece.offset_elems, own.piece.num_elems());
    bytes.resize(static_cast<std::size_t>(gradient.num_bytes()));
    compute_.transfer(bytes.data(), gradient.data, gradient.num_bytes());
    synchronize();
    bool is_finite = true;
    dispatch_real(gradient.dtype, [&](auto zero) {
      const auto* values = reinterpret_cast<const decltype(zero)*>(bytes.data());
      is_finite = std::all_of(values, values + gradient.num_elems(), [](auto value) { return std::isfinite(value); });
    });
    if (is_finite) continue;
    const std::int64_t place = backward_place(config_.model, *own.parameter);
    if (!first || place < first->first) first.emplace(place, own.piece.name);
  }
  return first;
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

PhaseTimes Engine::settle() {
  synchronize();
  for (Communicator* communicator : grid_.all()) communicator->check_async();
  Stage::Timers& passes = stage_->timers();
  StreamTimer& tensor = grid_.tensor->collective_timer();
  const std::array<StreamTimer*, 2> waits = {&reducer_->wait_timer(), &gatherer_->wait_timer()};
  PhaseTimes times;
  times.forward_s = passes.forward.total_s() - passes.forward.covered_s(tensor);
  times.backward_s = passes.backward.total_s() - passes.backward.covered_s(tensor);
  for (StreamTimer* wait : waits) {
    times.forward_s -= passes.forward.covered_s(*wait);
    times.backward_s -= passes.backward.covered_s(*wait);
    times.data_wait_s += wait->total_s();
    wait->clear();
  }
  times.tensor_comm_s = tensor.total_s();
  times.data_comm_s = grid_.data->collective_timer().total_s() + grid_.embedding->collective_timer().total_s();
  times.bubble_s = grid_.pipeline->wait_timer().total_s();
  times.optimizer_s = optimizer_timer_.total_s();
  times.host_update_s = optimizer_->host_timer().total_s();
  optimizer_->host_timer().clear();
  passes.forward.clear();
  passes.backward.clear();
  optimizer_timer_.clear();
  for (Communicator* communicator : grid_.all()) {
    communicator->collective_timer().clear();
    communicator->wait_timer().clear();
  }
  return times;
}

std::int64_t boundary_bytes(const Config& config, const GridShape& shape) {
  const std::int64_t rows = config.train.micro_batch_size * config.train.sequence_length;
  return rows / (config.parallel.sequence ? shape.tensor : 1) * config.model.hidden_size *
         dtype_bytes(storage_dtype(config.precision.dtype));
}

std::int64_t logits_bytes(const Config& config, const GridShape& shape) {
  const std::int64_t rows = config.train.micro_batch_size * config.train.sequence_length;
  const std::int64_t chunk = config.train.loss_chunk_tokens;
  return (chunk > 0 ? std::min(chunk, rows) : rows) *
         vocabulary_shard(config.model.vocab_size, 0, static_cast<int>(shape.tensor)).num_rows *
         dtype_bytes(storage_dtype(config.precision.dtype));
}

OwnerBytes planned_bytes(const Config& config, const GridShape& shape, int world_rank, DeviceKind kind) {
  Engine dry(config, make_dry_communicators(shape, world_rank), Device{DeviceKind::dry, 0, kind}, {}, {});
  dry.enqueue_step(0, 0, 1, 0, 1);
  dry.finish_step();
  dry.evaluate(0, 0);
  dry.next_tokens(1, [](std::int64_t, const double*, std::int64_t) { return 0; });
  if (config.checkpoint.is_on() || config.checkpoint.resume != "none") dry.fetch_state();
  return dry.peak_bytes();
}

}  // namespace potato
