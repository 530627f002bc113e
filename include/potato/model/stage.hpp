// The layers of one pipeline stage, assembled from configuration and grid.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "potato/comm/process_grid.hpp"
#include "potato/config/config.hpp"
#include "potato/device/timer.hpp"
#include "potato/layers/block.hpp"
#include "potato/layers/embedding.hpp"
#include "potato/pipeline/executor.hpp"

namespace potato {

// Which transformer layers each virtual stage holds: boundaries by cost, embedding and head included.
std::vector<std::int64_t> layer_boundaries(const Config& config, std::int64_t num_virtual_stages);

// All elements of the model, vocabulary padding and copies not counted.
std::int64_t num_model_parameters(const ModelConfig& model);

class Stage final : public StageProgram {
 public:
  // Declares this rank's parameters in ctx.registry. `max_alive`: most (micro-batch, chunk) pairs alive at once.
  Stage(const LayerContext& ctx, const Config& config, const GridCommunicators& grid, std::int64_t max_alive);

  // The micro-batches that the next passes refer to; the memory is the caller's.
  void set_micro_batches(std::span<const MicroBatch> micro_batches) { micro_batches_ = micro_batches; }

  Tensor make_boundary(int micro_batch) override;
  Tensor forward(int chunk, int micro_batch, Tensor input) override;
  Tensor backward(int chunk, int micro_batch, Tensor output_gradient) override;

  // Appends the units that a pass enters, in order.
  void append_uses(const Pass& pass, std::vector<int>& uses) const;

  // The logits [B, V_local] of the last forward with logits_position >= 0; empty elsewhere than on the last stage.
  Tensor take_logits() { return std::move(logits_); }
  // Time of this stage's passes on the compute stream, collectives inside included.
  struct Timers {
    StreamTimer forward;
    StreamTimer backward;
  };
  Timers& timers() noexcept { return timers_; }
  const VocabularyShard& vocabulary() const noexcept { return vocabulary_; }
  std::string describe() const;  // "layers 0-3, embedding"

 private:
  struct Chunk {
    std::int64_t first_layer = 0;
    std::vector<TransformerBlock> blocks;
    std::vector<int> units;  // of the blocks
  };
  struct Saved {
    int chunk = -1;  // −1: free
    int micro_batch = -1;
    std::vector<TransformerBlock::Saved> blocks;
    Tensor head_gradient;  // [M_local, C]
  };

  // Around every use of units' parameters.
  void enter(std::span<const int> units, bool backward);
  void leave(std::span<const int> units);
  Tensor embed(const MicroBatch& batch);
  Saved& claim(int chunk, int micro_batch);
  Saved& find(int chunk, int micro_batch);
  bool is_first(int chunk) const { return embedding_.has_value() && chunk == 0; }
  bool is_last(int chunk) const { return head_.has_value() && chunk == static_cast<int>(chunks_.size()) - 1; }

  LayerContext ctx_;
  std::int64_t hidden_size_;
  VocabularyShard vocabulary_;
  std::optional<Embedding> embedding_;
  std::optional<LmHead> head_;
  std::vector<int> embedding_units_;
  std::vector<int> head_units_;
  std::vector<Chunk> chunks_;
  std::vector<Saved> saved_;
  std::span<const MicroBatch> micro_batches_;
  Tensor logits_;
  Timers timers_;
};

}  // namespace potato
