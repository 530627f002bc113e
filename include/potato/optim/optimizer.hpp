// AdamW over this rank's shards of a registry's parameters, on the device or in host memory.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "potato/config/config.hpp"
#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/device/timer.hpp"
#include "potato/kernels/adamw.hpp"
#include "potato/params/registry.hpp"

namespace potato {

// One update of all parameters.
struct Update {
  double learning_rate = 0;
  std::int64_t number = 1;       // 1 for the first: bias corrections
  double loss_scale = 1;         // that the gradients carry
  bool skip_nonfinite = false;   // nothing changes where the norm is not finite
  ConstTensorView squared_norm;  // [1] fp64, global, of the gradients without their loss scale; read on the stream
  ConstTensorView host_norm;     // the same in host memory
};

// Where the master weights lie on the host (ZeRO-Offload, Ren et al., arXiv 2101.06840), so do the moments, and the
// update runs there: gradients come to the host piece by piece and weights go back, on two streams in turn, so that the
// copies of one piece hide behind the arithmetic of the other.
class Optimizer {
 public:
  // `memory` holds exp_avg and exp_avg_sq, which start at zero, and of an update on the host its two pieces. `lanes`
  // says how the streams of such an update are made.
  Optimizer(const OptimizerConfig& config, ParameterRegistry& registry, Arena& memory, Stream& compute,
            const StreamOptions& lanes);

  // Enqueues one update of all shards from their reduced gradients; later work on `compute` sees it. Calls
  // `on_updated(bucket)` when a bucket's shard of weights is complete at that point of `compute`.
  void step(const Update& update, Stream& compute, const std::function<void(int)>& on_updated);

  TensorView exp_avg() const { return exp_avg_.view(); }        // [num_shard_elems], compute dtype
  TensorView exp_avg_sq() const { return exp_avg_sq_.view(); }  // [num_shard_elems], compute dtype
  // Time that the compute stream spends in updates on the host.
  StreamTimer& host_timer() noexcept { return host_timer_; }

 private:
  struct Lane {
    Lane(Device device, const StreamOptions& options) : stream(device, options) {}
    Stream stream;
    Tensor gradients;  // [piece_elems_], compute dtype
    Tensor weights;    // [piece_elems_], the working copies' dtype
    Event updated;     // the arithmetic of its last piece is done
    Event done;
  };
  struct DecayRange {
    ShardRange range;
    double weight_decay = 0;
  };

  void update_on_device(int bucket, const DecayRange& part, const Update& update, Stream& compute);
  void update_on_host(int bucket, const DecayRange& part, const Update& update);
  void update_piece(Lane& lane, int bucket, std::int64_t begin, std::int64_t count, const AdamWStep& settings,
                    const Update& update);
  AdamWStep settings_of(const Update& update, double weight_decay) const;
  bool has_working_copy() const { return registry_.options().dtype != compute_dtype(registry_.options().dtype); }

  OptimizerConfig config_;
  ParameterRegistry& registry_;
  std::vector<std::vector<DecayRange>> ranges_;  // by bucket
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
  std::int64_t piece_elems_ = 0;
  std::deque<Lane> lanes_;  // two, or none
  std::size_t lane_ = 0;    // of the next piece
  Event ready_;             // gradients and norm
  StreamTimer host_timer_;
};

}  // namespace potato
