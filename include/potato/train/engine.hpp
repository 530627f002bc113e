// One rank's part of the model, its optimizer and its streams: steps, evaluation and sampling on the grid.
//
// The same code runs on device `dry`, where it counts the arenas that the real run then claims.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/comm/process_grid.hpp"
#include "potato/config/config.hpp"
#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/device/timer.hpp"
#include "potato/model/stage.hpp"
#include "potato/optim/gradient_reducer.hpp"
#include "potato/optim/loss_scaler.hpp"
#include "potato/optim/optimizer.hpp"
#include "potato/optim/weight_gatherer.hpp"
#include "potato/params/registry.hpp"
#include "potato/tensor/mirrored.hpp"

namespace potato {

// Memory by owner, bytes of this rank. The last three are host memory beside a GPU: pinned buffers, what
// zero.offload_optimizer and zero.offload_param keep there (on CPU ranks too), and the copy that a checkpoint is
// written from (with checkpoint.async on CPU ranks too).
enum class Owner : std::uint8_t {
  parameters,
  gradients,
  master,
  moments,
  activations,
  buffers,
  workspace,
  host,
  offloaded,
  snapshot
};
inline constexpr std::array<const char*, 10> owner_names = {
    "parameters", "gradients", "master weights", "moments",   "activations",
    "buffers",    "workspace", "host buffers",   "offloaded", "snapshot"};
using OwnerBytes = std::array<std::int64_t, owner_names.size()>;

// Whether an owner's memory is the host's, also beside a GPU.
constexpr bool is_on_host(Owner owner) { return owner >= Owner::host; }

// What one rank asks of all, for agreement within a step or an evaluation; bits of a mask.
enum Request : unsigned {
  request_save = 1,     // a checkpoint, then go on
  request_stop = 2,     // a checkpoint, then end
  request_requeue = 4,  // the same, with run.requeue_exit_code
};
inline constexpr int num_requests = 3;

struct StepResult {
  double loss = 0;        // mean over the step's counted targets, in nats
  double grad_norm = 0;   // global, before clipping
  double loss_scale = 1;  // that the step was made with
  bool skipped = false;   // fp16, train.on_nonfinite = skip: the gradients were not finite, nothing was updated
};

// Seconds that this rank's streams spent.
struct PhaseTimes {
  double forward_s = 0;   // without the collectives inside
  double backward_s = 0;  // without the collectives inside
  double tensor_comm_s = 0;
  double data_comm_s = 0;  // may hide behind computation
  double data_wait_s = 0;  // of it not hidden: the compute stream waits
  double bubble_s = 0;     // waiting for other stages
  double optimizer_s = 0;
  double host_update_s = 0;  // of it the update in host memory, copies included

  PhaseTimes& operator+=(const PhaseTimes& other) noexcept {
    forward_s += other.forward_s;
    backward_s += other.backward_s;
    tensor_comm_s += other.tensor_comm_s;
    data_comm_s += other.data_comm_s;
    data_wait_s += other.data_wait_s;
    bubble_s += other.bubble_s;
    optimizer_s += other.optimizer_s;
    host_update_s += other.host_update_s;
    return *this;
  }
};

class Engine {
 public:
  // Declares, allocates and initialises. `capacity` in bytes by owner; ignored on `dry`. Collective over the grid only
  // in so far as `grid` was made collectively. `recorder`, which must outlive this, learns what the streams do.
  Engine(const Config& config, GridCommunicators grid, Device device, const OwnerBytes& capacity,
         const std::function<void(std::exception_ptr)>& on_stream_error, FlightRecorder* recorder = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- Batches: host memory for one rank's share of a global batch, [num_micro_batches, B · T] each ---
  struct BatchBuffer {
    std::int32_t* tokens;
    std::int32_t* targets;
  };
  static constexpr int num_batch_buffers = 2;
  BatchBuffer batch_buffer(int buffer) const;
  std::int64_t num_micro_batches() const noexcept { return num_micro_batches_; }
  // Global sample number of row `row` (of num_micro_batches · B) of this rank, in a batch that starts at first_sample.
  std::int64_t sample_of_row(std::int64_t first_sample, std::int64_t row) const;
  bool needs_data() const noexcept { return grid_.is_first_stage() || grid_.is_last_stage(); }

  // --- Training: enqueue returns at once; finish waits. Collective over the grid. ---
  // num_targets: counted targets of the whole global batch; update: 1 for the first, skipped steps not counted. For
  // tests: with `overflows` the loss gradient is infinite.
  void enqueue_step(int buffer, std::int64_t first_sample, std::int64_t num_targets, double learning_rate,
                    std::int64_t update, bool overflows = false);
  StepResult finish_step();

  // For tests of the watchdog: this rank leaves out the next step's collective over the world.
  void skip_next_world_reduce() noexcept { skips_world_reduce_ = true; }

  // For tests of the watchdog: a kernel of the compute stream that takes an hour.
  void stall_compute();

  // Requests of this rank that the next step or evaluation brings to all ranks.
  void set_requests(unsigned requests) noexcept { requests_ = requests; }
  // What any rank requested in the last step or evaluation; the same on all ranks.
  unsigned agreed_requests() const noexcept { return agreed_requests_; }

  // Sum of the losses of a global batch, in nats; no update. Collective over the grid.
  double evaluate(int buffer, std::int64_t first_sample);

  // The next token of each of the B sequences of this data rank, whose first `length` tokens are in batch buffer 0.
  // `choose(row, logits, num_logits)` picks one; called on the last stage only. -> [B]. Collective over the grid.
  using ChooseToken = std::function<std::int32_t(std::int64_t, const double*, std::int64_t)>;
  const std::vector<std::int32_t>& next_tokens(std::int64_t length, const ChooseToken& choose);

  // The state that a checkpoint holds, as pieces in host memory: master weights, exp_avg, exp_avg_sq. Where it lies on
  // a GPU copies of it, made on first use and filled here. Waits for the streams.
  std::vector<TensorGroup> fetch_state();
  // With checkpoint.async: the same in copies that are made beside the work enqueued next, up to its update of the
  // state. The host must not read them before wait_for_snapshot(). Between steps only.
  std::vector<TensorGroup> begin_snapshot();
  // Blocks until the last snapshot is complete; from any thread.
  void wait_for_snapshot() const { snapshot_done_.synchronize(); }
  // After the host changed what fetch_state() gave: copies go to the device, and weights are made anew.
  void restore_state();
  LossScaler& loss_scaler() noexcept { return loss_scaler_; }
  // The parameter with a non-finite gradient whose backward came first in the last step, on this rank: its name, and
  // its place in that order. Nothing where all are finite. Waits for the streams.
  std::optional<std::pair<std::int64_t, std::string>> first_nonfinite_gradient();

  void synchronize();
  ParameterRegistry& registry() noexcept { return registry_; }
  Optimizer& optimizer() noexcept { return *optimizer_; }
  const GridCommunicators& grid() const noexcept { return grid_; }
  const Stage& stage() const noexcept { return *stage_; }
  OwnerBytes peak_bytes() const;
  OwnerBytes capacity_bytes() const;
  // Times the compute stream's operations until it is called with null.
  void set_profile(OperationProfile* profile) noexcept { compute_.set_profile(profile); }
  StreamCosts costs() const { return compute_.costs(); }
  // Of the training steps that were finished since the last call.
  PhaseTimes take_times() noexcept { return std::exchange(times_, {}); }

 private:
  // Flat blocks, in the order of fetch_state().
  static constexpr std::size_t num_state_blocks = 3;
  std::array<TensorView, num_state_blocks> state_blocks() const {
    return {registry_.master_block(), optimizer_->exp_avg(), optimizer_->exp_avg_sq()};
  }
  bool copies_state() const noexcept;
  bool skips_nonfinite() const noexcept {
    return loss_scaler_.is_active() || config_.train.on_nonfinite == OnNonfinite::skip;
  }
  // Enqueues copies of the state, where it is copied, on `stream`; -> the pieces.
  std::vector<TensorGroup> copied_state(Stream& stream);
  // Enqueues this rank's requests, and reads what was agreed.
  void send_requests(const TensorView& scalars);
  void read_requests(const double* scalars);
  // Where a block's copy in host memory lies, or itself.
  TensorView in_host_memory(std::size_t block, const TensorView& part) const;
  // Forward of micro-batch 0 through all chunks.
  std::span<const Pass> one_micro_batch() const;
  // The shards' weights were made anew: the next passes gather them.
  void shards_changed();
  // Runs passes with the units' weights gathered as they need them.
  void run_passes(std::span<const Pass> passes, std::span<const int> uses);
  // Waits for the streams, throws where a communicator is in trouble, and gives the times of what was done since the
  // last call.
  PhaseTimes settle();
  void send_batch(int buffer);
  // Fills next_ from logits_, both on the host.
  void choose_tokens(const ChooseToken& choose);
  void set_micro_batches(int buffer, std::int64_t first_sample, bool training, double gradient_scale);
  Arena& arena(Owner owner) { return arenas_[static_cast<std::size_t>(owner)]; }

  Config config_;
  GridCommunicators grid_;
  Device device_;
  DType dtype_;
  std::deque<Arena> arenas_;
  Stream compute_;
  Stream communication_;
  std::optional<Stream> snapshots_;  // with checkpoint.async
  Event snapshot_done_;
  bool snapshot_pending_ = false;  // the next update waits for it
  bool skips_world_reduce_ = false;
  unsigned requests_ = 0;
  unsigned agreed_requests_ = 0;
  ParameterRegistry registry_;
  std::int64_t num_micro_batches_;
  Schedule schedule_;
  std::vector<Pass> forward_passes_;
  std::optional<Stage> stage_;
  std::vector<int> training_uses_;  // units in the order of the passes
  std::vector<int> evaluation_uses_;
  std::vector<int> sampling_uses_;
  std::optional<PipelineExecutor> executor_;
  std::optional<GradientReducer> reducer_;
  std::optional<WeightGatherer> gatherer_;
  std::optional<Optimizer> optimizer_;
  Tensor workspace_;  // scratch of a GPU's kernels
  Mirrored tokens_;   // [buffers, num_micro_batches · B·T] int32
  Mirrored targets_;  // the same
  Mirrored scalars_;  // [2 + num_requests] fp64: loss sum, squared gradient norm, ranks with each request
  Mirrored next_;     // [B] int32
  Mirrored logits_;   // [tensor ranks, B, V_local], gathered for sampling
  std::vector<MicroBatch> micro_batches_;
  std::vector<std::int32_t> chosen_;
  std::vector<double> row_logits_;
  std::int64_t num_targets_ = 1;
  std::array<Tensor, num_state_blocks> state_copies_;  // of state_blocks(), in host memory
  std::vector<ShardRange> norm_ranges_;
  LossScaler loss_scaler_;
  StreamTimer optimizer_timer_;
  PhaseTimes times_;
};

// Bytes of the activation that one pipeline stage hands to the next for a micro-batch.
std::int64_t boundary_bytes(const Config& config, const GridShape& shape);

// Bytes of the logits that the last stage holds at once, part of its activations.
std::int64_t logits_bytes(const Config& config, const GridShape& shape);

// What a rank at `world_rank` of the grid will claim: a dry run of one step, an evaluation and a sampled token.
// `kind` is the device that the real run uses.
OwnerBytes planned_bytes(const Config& config, const GridShape& shape, int world_rank,
                         DeviceKind kind = DeviceKind::cpu);

}  // namespace potato
