// The parameter registry: storage, and the logical pieces in it.
//
// A parameter is what a layer uses (e.g. the fused, tensor-parallel qkv weight of one rank). A piece is the part of a
// logical tensor that lies in it: norms, initialisation, checkpoints and tests work on pieces, so fused, sharded,
// replicated and tied weights are no special cases for them.
//
// Layers declare parameters while a stage is built; allocate() then lays all of them out in flat storage, bucket by
// bucket in the order in which backward finishes them. Weights of 16 bits are working copies of fp32 master weights
// (Micikevicius et al., arXiv 1710.03740); gradients are accumulated in fp32 (fp64 beside fp64 weights).
//
// ZeRO (Rajbhandari et al., arXiv 1910.02054) cuts every bucket into equal parts, one for each data rank; this rank's
// is its shard. Stage 1 keeps only shards of master weights and moments, 2 also of gradients, 3 also of weights.
// Without ZeRO the shard is the bucket. A cut may fall anywhere in a tensor; own_pieces() gives what lies in the shards
// as hyperslabs again.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "potato/device/arena.hpp"
#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// A hyperslab of a logical tensor of one or two dims, contiguous and row-major in the parameter's storage.
struct Piece {
  std::string name;                         // of the logical tensor, e.g. "layers.3.attn.q.weight"
  Shape shape;                              // of the logical tensor; weights are [out, in]
  std::array<std::int64_t, 2> begin{0, 0};  // of the slab; the second entry is unused for one dim
  std::array<std::int64_t, 2> count{0, 1};
  std::int64_t offset_elems = 0;  // in the parameter's storage

  std::int64_t num_elems() const noexcept { return count[0] * count[1]; }
};

enum class InitKind : std::uint8_t { zeros, ones, normal };

// How a parameter relates to the other ranks; each kind has its own buckets.
enum class Sharing : std::uint8_t {
  sharded,     // each tensor rank holds its own part
  replicated,  // every tensor rank holds all of it; under sequence parallelism their gradients are partial sums
  tied,        // the embedding that first and last stage share
};

struct ParameterSpec {
  std::string name;
  Shape shape;  // of the storage
  std::vector<Piece> pieces;
  Sharing sharing = Sharing::sharded;
  // Whether this rank's copy counts in norms and is written to checkpoints (one copy of each piece does).
  bool is_owner = true;
  bool decay = false;
  InitKind init = InitKind::zeros;
  double init_std = 0;
  int uses_per_micro_batch = 1;  // how often a micro-batch's backward adds to its gradient
  int unit = -1;                 // set by declare()
};

struct Parameter {
  ParameterSpec spec;
  std::int64_t flat_offset_elems = 0;
  int bucket = -1;
  TensorView weight;               // spec.shape; what layers compute with
  TensorView gradient;             // spec.shape, compute dtype
  std::int64_t accumulations = 0;  // enqueued since it was last begun anew, kept by the registry
};

// Parameters that are reduced, updated and gathered together: a contiguous range of the flat storage.
struct Bucket {
  Sharing sharing = Sharing::sharded;
  std::int64_t begin_elems = 0;
  std::int64_t num_elems = 0;          // equal parts of whole alignments for all shards
  std::int64_t shard_begin_elems = 0;  // of this rank's shard, in storage that holds shards only
  std::vector<Parameter*> parameters;  // matrices first, then vectors
  std::vector<int> units;              // that its parameters belong to
  std::size_t num_ready = 0;           // parameters whose gradients are complete
};

struct FlatRange {
  std::int64_t begin_elems = 0;
  std::int64_t num_elems = 0;
};

// Consecutive elements of a bucket's shard that are treated alike.
struct ShardRange {
  int bucket = 0;
  std::int64_t begin_elems = 0;  // in the shard
  std::int64_t num_elems = 0;
};

// What of a logical tensor lies in a bucket's shard; piece.offset_elems counts from the shard's first element.
struct OwnPiece {
  Piece piece;
  const Parameter* parameter = nullptr;
};

// How allocate() lays storage out.
struct StorageOptions {
  DType dtype = DType::f32;              // of weights
  std::int64_t bucket_elems = 25000000;  // stages 0 to 2; a bucket of stage 2 holds whole units
  int zero_stage = 0;
  int shard = 0;                  // this rank's, along the data axis
  int num_shards = 1;             // data ranks, at any stage
  bool replicated_apart = false;  // replicated parameters have buckets of their own
  bool master_apart = false;      // master weights even where `dtype` is the compute dtype
  bool master_on_host = false;    // then apart
  bool weights_on_host = false;   // stage 3; then apart
};

struct StorageArenas {
  Arena& weights;
  Arena& gradients;
  Arena& master;
};

class ParameterRegistry {
 public:
  ParameterRegistry() = default;
  ParameterRegistry(const ParameterRegistry&) = delete;
  ParameterRegistry& operator=(const ParameterRegistry&) = delete;

  // Starts a unit: the parameters declared from here on are used together (a layer). Units of one group finish backward
  // one after another for each micro-batch, so that they may share a bucket at stage 2. Returns its number.
  int begin_unit(int group);
  int num_units() const noexcept { return static_cast<int>(unit_groups_.size()); }
  // Declares a parameter; the reference stays valid. Declare in forward order. Only before allocate().
  Parameter& declare(ParameterSpec spec);
  // One more use of a declared parameter in each micro-batch (the tied head on a single stage).
  void add_use(Parameter& parameter) { ++parameter.spec.uses_per_micro_batch; }

  // Lays out buckets and allocates weights, gradients, and master weights where they are apart from the weights.
  void allocate(const StorageArenas& arenas, const StorageOptions& options);

  // Initial weights of this rank's shards by logical name and index (I2), the same on any grid and device: computed on
  // the host with the stream's threads, then copied. Waits for the stream; `dry` is left alone.
  void initialize(std::uint64_t seed, Stream& stream);
  // Rounds a shard's master weights into its weights, e.g. after loading them; only where they are apart. Overwrites
  // the shard's gradients where one of the two lies in host memory, and waits for the stream where both do.
  void publish(int bucket, Stream& stream);
  // All shards. Waits for the stream.
  void refresh_weights(Stream& stream);

  const StorageOptions& options() const noexcept { return options_; }
  std::deque<Parameter>& parameters() noexcept { return parameters_; }
  const std::deque<Parameter>& parameters() const noexcept { return parameters_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  const Bucket& bucket(int index) const { return buckets_[static_cast<std::size_t>(index)]; }
  std::int64_t num_flat_elems() const noexcept { return num_flat_elems_; }    // padding included
  std::int64_t num_shard_elems() const noexcept { return num_shard_elems_; }  // in all shards of this rank
  bool shards_optimizer() const noexcept { return options_.zero_stage >= 1; }
  bool shards_gradients() const noexcept { return options_.zero_stage >= 2; }
  bool shards_weights() const noexcept { return options_.zero_stage >= 3; }
  bool has_master() const noexcept { return master_.is_held(); }
  // The flat memory in which all master_shard() lie.
  TensorView master_block() const { return has_master() ? master_.view() : weights_.view(); }

  // A bucket's whole weights (stages 0 to 2), and its whole gradients where they are kept for the whole step.
  TensorView bucket_weights(int bucket) const;
  TensorView bucket_gradients(int bucket) const;
  // Whether a bucket's gradients are accumulated over all micro-batches before they are reduced: always below stage 2;
  // there only the tied embedding's, whose two uses may lie micro-batches apart.
  bool accumulates_whole_step(int bucket) const;
  // This rank's shard of a bucket: [num_elems / shards].
  TensorView weight_shard(int bucket) const;
  TensorView gradient_shard(int bucket) const;
  TensorView master_shard(int bucket) const;  // the weights themselves if they are one
  // The part of `whole` [bucket.num_elems] that is this rank's shard.
  TensorView shard_of(int bucket, TensorView whole) const;
  // In storage of num_shard_elems(), e.g. the optimizer's moments.
  TensorView shard_in(int bucket, TensorView shards) const;

  // A piece's elements inside its parameter's storage (weight or gradient), as [count[0], count[1]].
  static TensorView piece_view(const Piece& piece, TensorView storage);
  // What this rank keeps of logical tensors, replicas too. Every element of a tensor is an owner's on exactly one data
  // rank if sharded, else on each.
  const std::vector<OwnPiece>& own_pieces() const noexcept { return own_pieces_; }
  // Logical elements that this rank's shards own.
  std::int64_t num_owned_elems() const noexcept;
  // The ranges of the shards with parameters for which `chosen` holds, neighbours joined (padding between them
  // included), bucket by bucket.
  std::vector<ShardRange> shard_ranges(const std::function<bool(const Parameter&)>& chosen) const;

  // --- Which weights are in use, for stage 3 ---

  struct UnitHooks {
    std::function<void(int unit, bool backward)> enter;
    std::function<void(int unit)> leave;
  };
  void set_unit_hooks(UnitHooks hooks) { unit_hooks_ = std::move(hooks); }
  // Between the two the unit's weights are valid, and with `backward` its gradients.
  void enter(int unit, bool backward) {
    if (unit_hooks_.enter) unit_hooks_.enter(unit, backward);
  }
  void leave(int unit) {
    if (unit_hooks_.leave) unit_hooks_.leave(unit);
  }
  // Stage 3: the bucket's weights are in `memory` [num_elems] from here on.
  void place_weights(int bucket, TensorView memory);

  // --- Gradient accumulation of one step, in the host's program order ---

  // `hook(i)` is called when the last gradient of bucket i was enqueued on the compute stream: of the step, or of the
  // micro-batch where the bucket does not accumulate the whole step.
  void set_bucket_hook(std::function<void(int)> hook) { on_bucket_ready_ = std::move(hook); }
  // Starts a step of so many micro-batches; enqueues that the gradients of all vectors (parameters without decay) that
  // accumulate over the whole step are 0.
  void begin_step(std::int64_t num_micro_batches, Stream& stream);
  // Stage 2 and 3: a micro-batch's gradients of the bucket accumulate in `memory` [num_elems]; vectors start at 0.
  void begin_bucket(int bucket, TensorView memory, Stream& stream);
  // 0 for the first accumulation into this gradient, else 1: the beta of the product that adds to it.
  static double beta(const Parameter& parameter) noexcept { return parameter.accumulations == 0 ? 0 : 1; }
  // Before kernels that only add: enqueues a fill with zeros if nothing was accumulated yet, and the start of the step
  // or bucket did not do it.
  static void zero_if_first(Parameter& parameter, Stream& stream);
  // Says that one accumulation was enqueued.
  void accumulated(Parameter& parameter);

 private:
  void form_buckets();
  void add_bucket(Sharing sharing, std::vector<Parameter*> members);
  void find_own_pieces();
  void begin_gradients(Bucket& bucket, TensorView memory, Stream& stream);
  std::int64_t shard_elems(const Bucket& bucket) const { return bucket.num_elems / num_cuts(); }
  std::int64_t num_cuts() const noexcept { return shards_optimizer() ? options_.num_shards : 1; }
  std::int64_t own_cut() const noexcept { return shards_optimizer() ? options_.shard : 0; }

  StorageOptions options_;
  std::deque<Parameter> parameters_;
  std::vector<int> unit_groups_;  // by unit
  std::vector<Bucket> buckets_;
  std::int64_t num_flat_elems_ = 0;
  std::int64_t num_shard_elems_ = 0;
  Tensor weights_;                       // [num_flat_elems], stage 3: [num_shard_elems]
  Tensor gradients_;                     // [num_flat_elems], from stage 2 on: [num_shard_elems]
  std::vector<Tensor> whole_gradients_;  // by bucket: of those that accumulate the whole step at stages 2 and 3
  Tensor master_;                        // [num_shard_elems]
  std::vector<OwnPiece> own_pieces_;
  std::int64_t num_micro_batches_ = 0;
  std::function<void(int)> on_bucket_ready_;
  UnitHooks unit_hooks_;
};

}  // namespace potato
