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
#include <string>
#include <vector>

#include "potato/comm/process_grid.hpp"
#include "potato/config/config.hpp"
#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/model/stage.hpp"
#include "potato/optim/gradient_reducer.hpp"
#include "potato/optim/optimizer.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// Memory by owner, bytes of this rank.
enum class Owner : std::uint8_t { parameters, gradients, optimizer, activations, buffers };
inline constexpr std::array<const char*, 5> owner_names = {"parameters", "gradients", "optimizer", "activations",
                                                           "buffers"};
using OwnerBytes = std::array<std::int64_t, owner_names.size()>;

struct StepResult {
  double loss = 0;       // mean over the step's counted targets, in nats
  double grad_norm = 0;  // global, before clipping
};

// Seconds that this rank's streams spent, since the last reset.
struct PhaseTimes {
  double forward_s = 0;   // without the collectives inside
  double backward_s = 0;  // without the collectives inside
  double tensor_comm_s = 0;
  double data_comm_s = 0;  // may hide behind backward
  double bubble_s = 0;     // waiting for other stages
  double optimizer_s = 0;
};

class Engine {
 public:
  // Declares, allocates and initialises. `capacity` in bytes by owner; ignored on `dry`. Collective over the grid only
  // in so far as `grid` was made collectively.
  Engine(const Config& config, GridCommunicators grid, Device device, const OwnerBytes& capacity,
         const std::function<void(std::exception_ptr)>& on_stream_error);
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
  // num_targets: counted targets of the whole global batch; update: 1 for the first.
  void enqueue_step(int buffer, std::int64_t first_sample, std::int64_t num_targets, double learning_rate,
                    std::int64_t update);
  StepResult finish_step();

  // Sum of the losses of a global batch, in nats; no update. Collective over the grid.
  double evaluate(int buffer, std::int64_t first_sample);

  // The next token of each of the B sequences of this data rank, whose first `length` tokens are in batch buffer 0.
  // `choose(row, logits, num_logits)` picks one; called on the last stage only. -> [B]. Collective over the grid.
  const std::vector<std::int32_t>& next_tokens(
      std::int64_t length, const std::function<std::int32_t(std::int64_t, const double*, std::int64_t)>& choose);

  void synchronize();
  ParameterRegistry& registry() noexcept { return registry_; }
  Optimizer& optimizer() noexcept { return *optimizer_; }
  const GridCommunicators& grid() const noexcept { return grid_; }
  const Stage& stage() const noexcept { return *stage_; }
  OwnerBytes peak_bytes() const;
  OwnerBytes capacity_bytes() const;
  StreamCosts costs() const { return compute_.costs(); }
  // Call after synchronize().
  PhaseTimes take_times();

 private:
  void set_micro_batches(int buffer, std::int64_t first_sample, bool training, double gradient_scale);
  Arena& arena(Owner owner) { return arenas_[static_cast<std::size_t>(owner)]; }

  Config config_;
  GridCommunicators grid_;
  Device device_;
  DType dtype_;
  std::deque<Arena> arenas_;
  Stream compute_;
  Stream communication_;
  ParameterRegistry registry_;
  std::int64_t num_micro_batches_;
  Schedule schedule_;
  std::vector<Pass> forward_passes_;
  std::optional<Stage> stage_;
  std::optional<PipelineExecutor> executor_;
  std::optional<GradientReducer> reducer_;
  std::optional<Optimizer> optimizer_;
  Tensor tokens_;   // [buffers, num_micro_batches, B·T] int32
  Tensor targets_;  // the same
  Tensor scalars_;  // [2] fp64: loss sum, squared gradient norm
  Tensor next_;     // [B] int32
  Tensor logits_;   // [tensor ranks, B, V_local], gathered for sampling
  std::vector<MicroBatch> micro_batches_;
  std::vector<std::int32_t> chosen_;
  std::vector<double> row_logits_;
  std::int64_t num_targets_ = 1;
  double optimizer_s_ = 0;
  double optimizer_start_s_ = 0;
  PhaseTimes reported_;  // totals at the last take_times()
};

// What a rank at `world_rank` of the grid will claim: a dry run of one step, an evaluation and a sampled token.
OwnerBytes planned_bytes(const Config& config, const GridShape& shape, int world_rank);

}  // namespace potato
