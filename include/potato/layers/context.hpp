// What every layer is handed: where to run, where activations live, and who shares the work.
//
// Shape letters in this room: B micro-batch, T sequence, M = B·T tokens, M_local tokens of this rank's row shard (M, or
// M / tensor ranks under sequence parallelism), C hidden width, F feed-forward width, H heads, V vocabulary; a suffix
// _local is this tensor rank's part.
#pragma once

#include <cstdint>
#include <string_view>

#include "potato/comm/communicator.hpp"
#include "potato/config/config.hpp"
#include "potato/core/flight_recorder.hpp"
#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/params/registry.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

struct LayerContext {
  Stream& stream;  // compute
  Arena& activations;
  Communicator& tensor;  // collectives of layers run here, on the compute stream
  ParameterRegistry& registry;
  DType dtype = DType::f32;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  AttentionKernel attention = AttentionKernel::automatic;
  bool deterministic = true;
  double dropout = 0;
  std::uint64_t seed = 0;
  FlightRecorder* recorder = nullptr;  // null: nobody listens

  // An activation.
  Tensor make(Shape shape) const { return Tensor(activations, dtype, shape); }
  // What stays in the compute dtype beside it: statistics, sums, losses.
  Tensor make_statistic(Shape shape) const { return Tensor(activations, compute_dtype(dtype), shape); }
};

// Tells the flight recorder where the compute stream is: when it gets there, or on a GPU when that is enqueued.
inline void note_pass(const LayerContext& ctx, FlightPass pass, std::int64_t micro_batch, std::int64_t layer) {
  if (ctx.recorder == nullptr) return;
  const auto note = [recorder = ctx.recorder, pass, micro_batch, layer] {
    recorder->set_pass(0, pass, micro_batch, layer);
  };
  if (ctx.stream.device().kind == DeviceKind::cpu) {
    ctx.stream.enqueue(note);
  } else {
    note();
  }
}

// One micro-batch on its way through the layers.
struct MicroBatch {
  std::int64_t batch = 0;             // B
  std::int64_t sequence = 0;          // T
  std::uint64_t first_sample = 0;     // global sample number of its first row
  ConstTensorView tokens;             // [M] int32
  ConstTensorView targets;            // [M] int32, −1: not counted
  bool training = true;               // dropout on, activations saved
  double gradient_scale = 0;          // loss_scale / counted targets of the whole step (I3)
  TensorView loss_sum;                // [1] fp64, added to by the last stage
  std::int64_t logits_position = -1;  // >= 0: the last stage gives the logits of this position instead of a loss

  std::int64_t num_tokens() const noexcept { return batch * sequence; }
};

// Rows of the flattened micro-batch that this rank's row shard holds.
inline std::int64_t local_rows(const LayerContext& ctx, const MicroBatch& micro_batch) {
  return ctx.sequence_parallel ? micro_batch.num_tokens() / ctx.tensor.num_ranks() : micro_batch.num_tokens();
}

// The token coordinates of the row shard (or of all rows).
inline TokenRows token_rows(const LayerContext& ctx, const MicroBatch& micro_batch, bool whole = false) {
  return {micro_batch.first_sample, micro_batch.sequence,
          whole || !ctx.sequence_parallel ? 0 : local_rows(ctx, micro_batch) * ctx.tensor.rank()};
}

// Dropout of this pass under the key that belongs to `name`.
inline Dropout layer_dropout(const LayerContext& ctx, const MicroBatch& micro_batch, PhiloxKey key) {
  return {micro_batch.training ? ctx.dropout : 0, key};
}

}  // namespace potato
