#include "potato/train/trainer.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "memory_check.hpp"
#include "model_signature.hpp"
#include "potato/checkpoint/folder.hpp"
#include "potato/comm/nccl_communicator.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/clock.hpp"
#include "potato/core/narrow.hpp"
#include "potato/core/version.hpp"
#include "potato/data/tokenizer.hpp"
#include "potato/kernels/libraries.hpp"
#include "potato/optim/learning_rate.hpp"
#include "potato/train/sampling.hpp"
#include "start_table.hpp"

namespace potato {

namespace {

DatasetOptions dataset_options(const Config& config, bool validate_ids) {
  DatasetOptions options;
  options.path = config.data.path;
  options.tokenizer = config.data.tokenizer;
  options.cache_dir = config.data.cache_dir;
  options.validation_fraction = config.data.validation_fraction;
  options.sequence_length = config.train.sequence_length;
  options.vocab_size = config.model.vocab_size;
  options.seed = static_cast<std::uint64_t>(config.run.seed);
  options.validate_ids = validate_ids;
  return options;
}

std::string scaler_json(const LossScaler::State& state) {
  const nlohmann::ordered_json json = {{"scale", state.scale},
                                       {"steps_since_overflow", state.steps_since_overflow},
                                       {"hysteresis_left", state.hysteresis_left},
                                       {"consecutive_skips", state.consecutive_skips}};
  return json.dump();
}

}  // namespace

Trainer::Trainer(const Config& config, const HostGroup& world, RunContext run)
    : config_(config), world_(world), run_(std::move(run)), requests_(config, world.rank() == 0) {
  check();
  shape_ = derive_grid(config_, world_.num_ranks());
  topology_ = discover_topology(world_);
  world_.agree(topology_problems(topology_, shape_));
  choose_device();
  open_data();
  fault_ = parse_fault(config_.run.debug_fault);
  recorder_ = make_flight_recorder(config_.run.dir + "/status", world_, shape_);
  make_engine();
  const bool prints = world_.rank() == 0 && !run_.quiet;
  if (!run_.quiet) print_start();
  const auto print = [prints](const std::string& line) {
    if (!prints) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  checkpoints_ = std::make_unique<Checkpoints>(
      config_, world_, checkpoint_file(config_.checkpoint.files, topology_.host_of_rank, world_.rank()), print,
      run_.on_fatal, recorder_.get());
  stragglers_ = std::make_unique<Stragglers>(config_, world_, shape_, topology_.host_of_rank);
  progress_ = checkpoints_->resume(*engine_, checkpoint_info());
  world_.run_agreed([&] { reporter_ = std::make_unique<Reporter>(config_, prints, progress_.step); });
}

void Trainer::check() const {
  world_.agree(check_config(config_, world_.num_ranks()));
  world_.run_agreed([&] {
    if (world_.rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(config_.run.dir + "/checkpoints", error);
    if (error) {
      throw ConfigError(cat("run.dir = ", config_.run.dir, ": cannot be created: ", error.message(),
                            "; choose a folder that you may write to"));
    }
    const std::string probe = config_.run.dir + "/.writable";
    if (!std::ofstream(probe)) {
      throw ConfigError(cat("run.dir = ", config_.run.dir, ": cannot be written to; choose another folder"));
    }
    std::filesystem::remove(probe, error);
  });
}

namespace {

// kernels.attention = cudnn where cuDNN cannot do it. run.device is resolved.
std::vector<std::string> attention_problems(const Config& config) {
  if (config.kernels.attention != AttentionKernel::cudnn) return {};
  std::vector<std::string> problems;
  const auto refuse = [&](const std::string& why) {
    problems.push_back(cat("kernels.attention = cudnn: ", why, "; choose auto or own"));
  };
  const std::int64_t head_dim = config.model.hidden_size / config.model.num_heads;
  if (config.run.device == DeviceChoice::cpu) refuse("the run is on CPU ranks");
  if (config.run.device == DeviceChoice::cuda && !has_cudnn()) refuse("this build has no cuDNN");
  if (config.precision.dtype != Precision::bf16 && config.precision.dtype != Precision::fp16) {
    refuse(cat("precision.dtype = ", to_text(config.precision.dtype), ", cuDNN's kernels take 16 bits"));
  }
  if (config.model.dropout > 0) refuse(cat("model.dropout = ", config.model.dropout, ", its masks are not ours"));
  if (head_dim % 8 != 0 || head_dim > 128) {
    refuse(cat("heads are ", head_dim, " wide, cuDNN takes multiples of 8 up to 128"));
  }
  return problems;
}

}  // namespace

void Trainer::choose_device() {
  const Precision precision = config_.precision.dtype;
  DeviceChoice choice = config_.run.device;
  if (choice == DeviceChoice::automatic) {
    // One kind of device for all ranks; fp64 is the CPU's.
    const double with_gpu = world_.sum(num_visible_gpus() > 0 ? 1 : 0);
    if (precision != Precision::fp64 && with_gpu > 0 && with_gpu < world_.num_ranks()) {
      world_.agree({cat("run.device = auto: only ", with_gpu, " of ", world_.num_ranks(),
                        " ranks see a GPU; give each rank one, or choose run.device = cpu")});
    }
    choice = precision != Precision::fp64 && with_gpu > 0 ? DeviceChoice::cuda : DeviceChoice::cpu;
  }
  config_.run.device = choice;
  std::vector<std::string> problems;
  if (choice == DeviceChoice::cpu && precision == Precision::tf32) {
    problems.emplace_back("precision.dtype = tf32 rounds inputs of a GPU's matrix products; on the CPU choose fp32");
  }
  const std::int64_t head_dim = config_.model.hidden_size / config_.model.num_heads;
  constexpr std::int64_t most_head_dim = 256;
  if (choice == DeviceChoice::cuda && head_dim > most_head_dim) {
    problems.push_back(cat("model.hidden_size / model.num_heads = ", head_dim, ": heads on a GPU are at most ",
                           most_head_dim, " wide; raise model.num_heads, or choose run.device = cpu"));
  }
  if (choice == DeviceChoice::cuda && precision == Precision::fp64) {
    problems.emplace_back("precision.dtype = fp64 is for CPU ranks; on a GPU choose fp32, tf32, bf16 or fp16");
  }
  if (choice == DeviceChoice::cuda && config_.run.debug_link_gb_per_s > 0) {
    problems.emplace_back("run.debug_link_gb_per_s slows CPU ranks only; remove it");
  }
  if (choice == DeviceChoice::cpu && config_.zero.pin_memory) {
    problems.emplace_back("zero.pin_memory = true has no effect on CPU ranks; remove it");
  }
  for (const std::string& problem : attention_problems(config_)) problems.push_back(problem);
  world_.agree(problems);
  if (choice == DeviceChoice::cpu) return;
  gpus_ = discover_gpus(world_, topology_);
  device_ = Device{DeviceKind::cuda, gpus_->place.ordinal};
  binding_ = bind_near_gpu(*gpus_, topology_, config_.run.threads);
}

void Trainer::open_data() {
  const bool is_root = world_.rank() == 0;
  world_.run_agreed([&] {
    if (is_root) Dataset::prepare(dataset_options(config_, false));
  });
  // Hosts that do not share the cache's file system make their own.
  world_.run_agreed([&] {
    if (topology_.local_rank == 0 && !is_root) Dataset::prepare(dataset_options(config_, false));
  });
  world_.run_agreed([&] { data_ = std::make_unique<Dataset>(Dataset::open(dataset_options(config_, is_root))); });
  config_.model.vocab_size = data_->vocab_size();
}

void Trainer::make_engine() {
  const std::string device = gpus_ ? cat(device_name(device_), " ", gpus_->place.name) : device_name(device_);
  for (const std::string& line :
       world_.all_gather(cat("rank ", world_.rank(), ": ",
                             topology_.host_of_rank[static_cast<std::size_t>(world_.rank())], ", ", device))) {
    hosts_ += line + "\n";
  }
  planned_ = planned_bytes(config_, shape_, world_.rank(), device_.kind);
  host_memory_ = check_host_memory(world_, topology_, config_, shape_, device_.kind, planned_);
  if constexpr (with_cuda) {
    if (gpus_) {
      check_gpu_memory(world_, topology_, *gpus_, config_, shape_, planned_);
      GpuCommOptions options;
      options.deterministic = config_.run.deterministic;
      options.num_chunks = static_cast<int>(config_.parallel.virtual_chunks);
      options.message_bytes = boundary_bytes(config_, shape_);
      options.timeout_s = config_.comm.timeout_s;
      engine_ = std::make_unique<Engine>(
          config_, make_gpu_communicators(world_.comm(), shape_, device_, gpus_->transport, options), device_, planned_,
          run_.on_fatal, recorder_.get());
      if (config_.comm.check) check_collectives(engine_->grid(), world_.comm(), recorder_.get());
      if (gpus_->transport == Transport::nccl && world_.num_ranks() > 1) {
        // A collective that never ends on the device looks like a slow one to everything else.
        const auto end_job = [on_fatal = run_.on_fatal](const std::string& trouble) {
          on_fatal(std::make_exception_ptr(Error(trouble)));
        };
        const auto all = engine_->grid().all();
        watch_ = std::make_shared<NcclWatch>(std::vector<Communicator*>(all.begin(), all.end()), config_.comm.timeout_s,
                                             end_job);
      }
      return;
    }
  }
  engine_ = std::make_unique<Engine>(config_,
                                     make_mpi_communicators(world_.comm(), shape_, {config_.run.debug_link_gb_per_s}),
                                     device_, planned_, run_.on_fatal, recorder_.get());
  if (config_.comm.check) check_collectives(engine_->grid(), world_.comm(), recorder_.get());
}

CheckpointInfo Trainer::checkpoint_info() const {
  CheckpointInfo info;
  info.step = progress_.step;
  info.updates = progress_.updates;
  info.next_sample = progress_.next_sample;
  info.tokens = progress_.tokens;
  info.model_signature = model_signature(config_.model);
  info.config_given = run_.config_given;
  info.config_ini = to_ini(config_);
  info.command_line = run_.command_line;
  info.environment = masked_environment();
  info.hosts = hosts_;
  info.grid = cat("data ", shape_.data, " x tensor ", shape_.tensor, " x pipeline ", shape_.pipeline);
  info.versions = cat("PotatoChat ", version(), " (", git_commit(), "), ", mpi_library_version(), ", ", hdf5_version(),
                      ", ", cuda_library_versions());
  info.fingerprint = numerics_fingerprint(config_, shape_, gpus_ ? &*gpus_ : nullptr);
  info.dtype = to_text(config_.precision.dtype);
  info.loss_scaler = scaler_json(engine_->loss_scaler().state());
  return info;
}

void Trainer::print_start() const {
  StartFacts facts;
  facts.shape = shape_;
  facts.data_description = data_->description();
  facts.holds = engine_->stage().describe();
  facts.planned = planned_;
  facts.host_memory = host_memory_;
  facts.device = gpus_ ? cat(device_name(device_), " ", gpus_->place.name) : device_name(device_);
  facts.transport = gpus_ ? cat(transport_name(gpus_->transport), ": ", gpus_->reason) : "mpi";
  facts.binding = binding_;
  print_start_table(config_, world_, topology_, facts);
}

std::int64_t Trainer::count_targets(const SampleSource& source, std::int64_t first_sample) const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < config_.train.global_batch_size; ++i) {
    count += source.num_valid_targets(first_sample + i);
  }
  return count;
}

void Trainer::fill_batch(int buffer, const SampleSource& source, std::int64_t first_sample) const {
  if (!engine_->needs_data()) return;
  const Engine::BatchBuffer batch = engine_->batch_buffer(buffer);
  const std::int64_t num_rows = engine_->num_micro_batches() * config_.train.micro_batch_size;
  const std::int64_t length = config_.train.sequence_length;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    source.fill(engine_->sample_of_row(first_sample, row), batch.tokens + row * length, batch.targets + row * length);
  }
}

StepResult Trainer::train_step() {
  const double start_s = now_s();
  data_s_ = 0;
  recorder_->set_step(progress_.step + 1);
  recorder_->set_phase(FlightPhase::loading_data);
  play_fault();
  if (filled_sample_ != progress_.next_sample) fill_batch(buffer_, data_->train(), progress_.next_sample);
  data_s_ += now_s() - start_s;
  recorder_->set_phase(FlightPhase::enqueueing);
  engine_->set_requests(requests_.poll());
  const bool overflows =
      progress_.step + 1 == config_.run.debug_overflow_step ||
      (fault_.kind == Fault::Kind::nan && fault_.rank == world_.rank() && progress_.step + 1 == fault_.step);
  engine_->enqueue_step(buffer_, progress_.next_sample, count_targets(data_->train(), progress_.next_sample),
                        learning_rate_at(config_.optimizer, config_.train.steps, progress_.updates),
                        progress_.updates + 1, overflows);
  // While the streams work, the host reads the next batch into the other buffer.
  progress_.next_sample += config_.train.global_batch_size;
  buffer_ = (buffer_ + 1) % Engine::num_batch_buffers;
  const double fill_s = now_s();
  recorder_->set_phase(FlightPhase::loading_data);
  fill_batch(buffer_, data_->train(), progress_.next_sample);
  data_s_ += now_s() - fill_s;
  filled_sample_ = progress_.next_sample;
  recorder_->set_phase(FlightPhase::waiting);
  const StepResult result = engine_->finish_step();
  pending_ |= engine_->agreed_requests();
  ++progress_.step;
  if (!result.skipped) ++progress_.updates;
  progress_.tokens += config_.train.global_batch_size * config_.train.sequence_length;
  last_step_s_ = now_s() - start_s;
  return result;
}

double Trainer::evaluate(std::int64_t max_batches) {
  const SampleSource* source = data_->validation();
  PC_CHECK(source != nullptr, "no validation split");
  const std::int64_t batch_size = config_.train.global_batch_size;
  std::int64_t num_batches = (source->num_windows() + batch_size - 1) / batch_size;
  if (max_batches > 0) num_batches = std::min(num_batches, max_batches);
  double loss_sum = 0;
  std::int64_t num_targets = 0;
  filled_sample_ = -1;  // the buffer is used here
  for (std::int64_t i = 0; i < num_batches; ++i) {
    recorder_->set_phase(FlightPhase::evaluating);
    fill_batch(buffer_, *source, i * batch_size);
    engine_->set_requests(requests_.poll());
    loss_sum += engine_->evaluate(buffer_, i * batch_size);
    num_targets += count_targets(*source, i * batch_size);
    pending_ |= engine_->agreed_requests();
    if (must_stop()) {
      if (reporter_)
        reporter_->line(cat("eval ", progress_.step, " was cut short after ", i + 1, " of ", num_batches, " batches"));
      return std::numeric_limits<double>::quiet_NaN();
    }
  }
  const double loss = loss_sum / static_cast<double>(num_targets);
  if (reporter_) reporter_->evaluation(progress_.step, loss, data_->bytes_per_token(), num_targets);
  return loss;
}

bool Trainer::save() {
  recorder_->set_phase(FlightPhase::saving);
  engine_->synchronize();
  bool is_saved = false;
  if (config_.checkpoint.is_on()) {
    is_saved = checkpoints_->save(*engine_, checkpoint_info());
  } else {
    reporter_->line("checkpoint  none: checkpoint.at_end = false, and no every_steps or every_minutes");
  }
  requests_.honoured(pending_);
  pending_ &= ~request_save;
  saved_step_ = progress_.step;
  return is_saved;
}

std::string Trainer::first_nonfinite() const {
  const auto mine = engine_->first_nonfinite_gradient();
  std::pair<std::int64_t, std::string> first(std::numeric_limits<std::int64_t>::max(), "none");
  for (const std::string& text : world_.all_gather(mine ? cat(mine->first, " ", mine->second) : std::string())) {
    std::istringstream in(text);
    std::int64_t place = 0;
    std::string name;
    if (in >> place >> name && place < first.first) first = {place, name};
  }
  return first.second;
}

void Trainer::handle_nonfinite(const StepResult& result) {
  const bool is_finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (is_finite && !result.skipped) {
    skips_in_a_row_ = 0;
    return;
  }
  constexpr const char* tensor_text = "; the first tensor of backward whose gradient is not finite is ";
  if (!result.skipped) {
    throw Error(cat("step ", progress_.step, ": loss ", result.loss, ", gradient norm ", result.grad_norm,
                    ": not finite", tensor_text, first_nonfinite(),
                    "; lower optimizer.learning_rate or raise optimizer.warmup_steps, or pass over such steps with "
                    "train.on_nonfinite = skip"));
  }
  ++skips_in_a_row_;
  const LossScaler& scaler = engine_->loss_scaler();
  if (scaler.is_active()) {
    reporter_->line(cat("step ", progress_.step, " was skipped: gradients overflowed with loss scale ",
                        result.loss_scale, "; it is now ", scaler.scale()));
  } else {
    reporter_->line(cat("step ", progress_.step, " was skipped: loss ", result.loss, ", gradient norm ",
                        result.grad_norm, tensor_text, first_nonfinite()));
  }
  if (!scaler.gave_up() && skips_in_a_row_ < config_.precision.consecutive_skips_limit) return;
  throw Error(cat("step ", progress_.step, ": ", config_.precision.consecutive_skips_limit,
                  " steps in a row were skipped", tensor_text, first_nonfinite(),
                  scaler.is_active() ? cat("; loss scale ", scaler.scale()) : "",
                  "; lower optimizer.learning_rate, or train in bf16"));
}

void Trainer::start_watching() {
  WatchdogOptions options;
  options.folder = config_.run.dir + "/status";
  options.shape = shape_;
  options.world_rank = world_.rank();
  options.timeout_s = config_.comm.timeout_s;
  options.abort_timeout_s = config_.run.abort_timeout_s;
  watchdog_ = std::make_unique<Watchdog>(options, *recorder_, [on_fatal = run_.on_fatal](const std::string& line) {
    if (on_fatal) on_fatal(std::make_exception_ptr(Error(line)));
  });
}

void Trainer::play_fault() {
  if (fault_.rank != world_.rank() || progress_.step + 1 < fault_.step) return;
  const bool is_step = progress_.step + 1 == fault_.step;
  constexpr auto for_ever = std::chrono::hours(1);
  if (fault_.kind == Fault::Kind::slow) std::this_thread::sleep_for(std::chrono::milliseconds(40));
  if (fault_.kind == Fault::Kind::data_sleep && is_step) std::this_thread::sleep_for(for_ever);
  if (fault_.kind == Fault::Kind::stop && is_step) ::raise(SIGSTOP);
  if (fault_.kind == Fault::Kind::kernel_sleep && is_step) engine_->stall_compute();
  if (fault_.kind == Fault::Kind::skip_collective && is_step) engine_->skip_next_world_reduce();
}

void Trainer::take_step() {
  const AllocationCounts before = allocation_counts();
  const double learning_rate = learning_rate_at(config_.optimizer, config_.train.steps, progress_.updates);
  const bool is_profiled = config_.log.operation_times && progress_.step + 1 == config_.train.steps;
  if (is_profiled) engine_->set_profile(&profile_);
  const StepResult result = train_step();
  if (is_profiled) engine_->set_profile(nullptr);
  StepRecord record;
  record.step = progress_.step;
  record.tokens = progress_.tokens;
  record.loss = result.loss;
  record.grad_norm = result.grad_norm;
  record.learning_rate = learning_rate;
  record.step_s = last_step_s_;
  record.tokens_per_s =
      static_cast<double>(config_.train.global_batch_size * config_.train.sequence_length) / last_step_s_;
  const PhaseTimes times = engine_->take_times();
  reporter_->step(record, times, data_s_);
  const bool is_first = progress_.step == first_step_ + 1;  // which is like no other
  if (!is_first) stragglers_->add(times, data_s_);
  if (!is_first && reporter_->prints_step(progress_.step)) {
    for (const std::string& line : stragglers_->gathered()) reporter_->line(line);
  }
  if (progress_.step > first_step_ + 1 && !is_profiled) own_allocations_ += allocation_counts().own - before.own;
  handle_nonfinite(result);
}

int Trainer::run() {
  start_watching();
  first_step_ = progress_.step;
  saved_step_ = progress_.step;
  const bool has_validation = data_->validation() != nullptr;
  if (progress_.step >= config_.train.steps) {
    reporter_->line(
        cat("nothing to train: the checkpoint is at step ", progress_.step, " of train.steps = ", config_.train.steps));
  }
  const double start_s = now_s();
  const CommStats traffic_before = engine_->grid().data->stats();
  const auto is_due = [this](std::int64_t every) { return every > 0 && progress_.step % every == 0; };
  while (progress_.step < config_.train.steps && !must_stop()) {
    take_step();
    checkpoints_->poll();
    if (has_validation && is_due(config_.eval.every_steps) && progress_.step < config_.train.steps && !must_stop()) {
      evaluate(config_.eval.batches);
    }
    if (is_due(config_.checkpoint.every_steps) || (pending_ & request_save) != 0) save();
  }
  train_s_ = now_s() - start_s;
  if (progress_.step > first_step_) {
    const auto num_steps = static_cast<double>(progress_.step - first_step_);
    const CommStats& traffic = engine_->grid().data->stats();
    data_bytes_per_step_ = (traffic.bytes - traffic_before.bytes) / num_steps;
    data_calls_per_step_ = static_cast<double>(traffic.num_calls - traffic_before.num_calls) / num_steps;
  }
  if (config_.log.operation_times) reporter_->line(profile_.table(1));
  if (saved_step_ != progress_.step && (config_.checkpoint.at_end || must_stop())) save();
  if (has_validation && !must_stop()) evaluate(config_.eval.final_batches);
  if (config_.sample.tokens > 0 && !must_stop()) generate();
  recorder_->set_phase(FlightPhase::saving);
  const bool all_saved = checkpoints_->finish();
  recorder_->set_phase(FlightPhase::ending);
  const int exit_code = !all_saved                          ? 1
                        : (pending_ & request_requeue) != 0 ? narrow<int>(config_.run.requeue_exit_code)
                                                            : 0;
  if (must_stop()) say_why_it_stops(exit_code);
  print_end();
  return exit_code;
}

void Trainer::say_why_it_stops(int exit_code) {
  requests_.honoured(pending_);
  std::string reasons;
  const auto all = world_.all_gather(requests_.reason());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    reasons += cat(reasons.empty() ? "" : ", ", all[rank], " on rank ", rank, " (", topology_.host_of_rank[rank], ")");
  }
  reporter_->line(cat("stopping    after step ", progress_.step, " of ", config_.train.steps, ": ",
                      reasons.empty() ? "asked to" : reasons, "; exit code ", exit_code));
}

void Trainer::generate() {
  if (data_->kind() != SourceKind::text) {
    reporter_->line("sample      none: token files bring no tokenizer to decode with");
    return;
  }
  const std::int64_t batch = config_.train.micro_batch_size;
  const std::int64_t length = config_.train.sequence_length;
  std::vector<std::int32_t> prompt = ByteTokenizer::encode(config_.sample.prompt);
  if (prompt.empty()) prompt = ByteTokenizer::encode("\n");
  const auto prompt_length = std::min(static_cast<std::int64_t>(prompt.size()), length - 1);
  const std::int64_t end = std::min(length, prompt_length + config_.sample.tokens);
  if (prompt_length + config_.sample.tokens > length || prompt_length < static_cast<std::int64_t>(prompt.size())) {
    reporter_->line(cat("sample      ", end - prompt_length, " of ", config_.sample.tokens, " tokens, after ",
                        prompt_length, " of the prompt's ", prompt.size(),
                        ": prompt and text end at train.sequence_length = ", length));
  }
  std::int32_t* tokens = engine_->batch_buffer(0).tokens;
  filled_sample_ = -1;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::fill_n(tokens + row * length, length, 0);
    std::copy_n(prompt.end() - prompt_length, prompt_length, tokens + row * length);
  }
  TokenChooser chooser(config_.sample, config_.model.vocab_size);
  const std::int64_t data_rank = engine_->grid().at.data;
  for (std::int64_t position = prompt_length; position < end; ++position) {
    recorder_->set_phase(FlightPhase::sampling);
    const auto& next = engine_->next_tokens(position, [&](std::int64_t row, const double* logits, std::int64_t) {
      const std::int64_t sequence = data_rank * batch + row;
      return sequence == 0 ? chooser.greedy(logits)
                           : chooser.sampled(logits, static_cast<std::uint64_t>(sequence), position);
    });
    for (std::int64_t row = 0; row < batch; ++row) {
      tokens[row * length + position] = next[static_cast<std::size_t>(row)];
    }
  }
  const bool brings_text = engine_->grid().at.tensor == 0 && engine_->grid().is_first_stage();
  std::string mine;
  for (std::int64_t row = 0; row < batch && brings_text; ++row) {
    mine += ByteTokenizer::decode({tokens + row * length, static_cast<std::size_t>(end)}) + '\0';
  }
  std::string all;
  for (const auto& text : world_.all_gather(mine)) all += text;
  if (world_.rank() != 0 || run_.quiet) return;
  const std::string path = config_.run.dir + "/sample.txt";
  std::ofstream out(path);
  std::int64_t index = 0;
  for (std::size_t begin = 0; begin < all.size(); ++index) {
    const std::size_t stop = all.find('\0', begin);
    const std::string text = all.substr(begin, stop - begin);
    if (index > 0) out << text << '\n';
    if (index < 2) {
      std::printf("\n--- %s ---\n%s\n", index == 0 ? "sample, greedy" : "sample, drawn", text.c_str());
    }
    begin = stop + 1;
  }
  out.flush();
  if (!out) throw IoError(cat("cannot write ", path, ": ", std::strerror(errno)));
  std::printf("\n%lld drawn samples are in %s\n", static_cast<long long>(index - 1), path.c_str());
}

void Trainer::print_end() const {
  const OwnerBytes peaks = engine_->peak_bytes();
  EndFacts facts;
  facts.planned = planned_;
  facts.peaks = peaks;
  facts.own_allocations = static_cast<std::int64_t>(world_.sum(static_cast<double>(own_allocations_)));
  facts.train_s = train_s_;
  facts.data_bytes_per_step = data_bytes_per_step_;
  facts.data_calls_per_step = data_calls_per_step_;
  if (!run_.quiet) print_end_table(world_, facts);
}

}  // namespace potato
