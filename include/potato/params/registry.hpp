// The parameter registry: storage, and the logical pieces in it.
//
// A parameter is what a layer uses (e.g. the fused, tensor-parallel qkv weight of one rank). A piece is the part of a
// logical tensor that lies in it: norms, initialisation, checkpoints and tests work on pieces, so fused, sharded,
// replicated and tied weights are no special cases for them.
//
// Layers declare parameters while a stage is built; allocate() then lays all of them out in one flat block a kind
// (weights, gradients, and the optimizer's moments share offsets), bucket by bucket in the order in which backward
// finishes them. Weights of 16 bits are working copies of fp32 master weights (Micikevicius et al., arXiv 1710.03740);
// gradients are accumulated in fp32 (fp64 beside fp64 weights).
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
};

struct Parameter {
  ParameterSpec spec;
  std::int64_t flat_offset_elems = 0;
  int bucket = -1;
  TensorView weight;               // spec.shape; what layers compute with
  TensorView gradient;             // spec.shape, compute dtype
  std::int64_t accumulations = 0;  // enqueued in this step, kept by the registry
};

// A contiguous range of the flat storage whose gradients are reduced together.
struct Bucket {
  Sharing sharing = Sharing::sharded;
  std::int64_t begin_elems = 0;
  std::int64_t num_elems = 0;
  int num_parameters = 0;
  int num_ready = 0;  // in this step
};

// A contiguous range of the flat storage.
struct FlatRange {
  std::int64_t begin_elems = 0;
  std::int64_t num_elems = 0;
};

class ParameterRegistry {
 public:
  ParameterRegistry() = default;
  ParameterRegistry(const ParameterRegistry&) = delete;
  ParameterRegistry& operator=(const ParameterRegistry&) = delete;

  // Declares a parameter; the reference stays valid. Declare in forward order. Only before allocate().
  Parameter& declare(ParameterSpec spec);
  // One more use of a declared parameter in each micro-batch (the tied head on a single stage).
  void add_use(Parameter& parameter) { ++parameter.spec.uses_per_micro_batch; }

  // Lays out buckets of about `bucket_elems` elements and allocates weights of `dtype`, gradients, and master weights
  // where `dtype` has 16 bits.
  void allocate(Arena& weights, Arena& gradients, Arena& master, DType dtype, std::int64_t bucket_elems);

  // Initial weights by logical name and index (I2), the same on any grid and device: computed on the host with the
  // stream's threads, then copied. Waits for the stream; `dry` is left alone.
  void initialize(std::uint64_t seed, Stream& stream);
  // Rounds the master weights into the working copies, e.g. after loading them; nothing to do where they are one.
  void refresh_working_copies(Stream& stream);

  std::deque<Parameter>& parameters() noexcept { return parameters_; }
  const std::deque<Parameter>& parameters() const noexcept { return parameters_; }
  std::vector<Bucket>& buckets() noexcept { return buckets_; }
  std::int64_t num_flat_elems() const noexcept { return num_flat_elems_; }  // padding included
  TensorView weights() const { return weights_.view(); }                    // [num_flat_elems]
  TensorView gradients() const { return gradients_.view(); }                // [num_flat_elems]
  // [num_flat_elems], compute dtype: what the optimizer updates and a checkpoint holds; weights() itself if that is it.
  TensorView master() const { return has_working_copies() ? master_.view() : weights_.view(); }
  bool has_working_copies() const { return master_.is_held(); }
  // Logical elements that this rank owns (sums to the model's size over tensor and pipeline ranks).
  std::int64_t num_owned_elems() const noexcept;

  // The flat ranges of all parameters for which `chosen` holds, neighbours joined (padding between them included).
  std::vector<FlatRange> ranges(const std::function<bool(const Parameter&)>& chosen) const;

  // The piece's elements inside a flat block with this registry's offsets, as [count[0], count[1]].
  static TensorView piece_view(const Parameter& parameter, const Piece& piece, TensorView flat);

  // --- Gradient accumulation of one step, in the host's program order ---

  // `hook(i)` is called when the last gradient of bucket i in a step was enqueued on the compute stream.
  void set_bucket_hook(std::function<void(int)> hook) { on_bucket_ready_ = std::move(hook); }
  // Starts a step of so many micro-batches; enqueues that the gradients of all vectors (parameters without decay) are
  // 0.
  void begin_step(std::int64_t num_micro_batches, Stream& stream);
  // 0 for the first accumulation of the step into this gradient, else 1: the beta of the product that adds to it.
  static double beta(const Parameter& parameter) noexcept { return parameter.accumulations == 0 ? 0 : 1; }
  // Before kernels that only add: enqueues a fill with zeros if nothing was accumulated in this step yet, and
  // begin_step() did not do it.
  static void zero_if_first(Parameter& parameter, Stream& stream);
  // Says that one accumulation was enqueued.
  void accumulated(Parameter& parameter);

 private:
  // Matrices first, then vectors, so that each kind is one range of the bucket.
  void add_bucket(Sharing sharing, std::vector<Parameter*> members);

  std::deque<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::int64_t num_flat_elems_ = 0;
  Tensor weights_;
  Tensor gradients_;
  Tensor master_;
  std::vector<FlatRange> vectors_;  // parameters without decay
  std::int64_t num_micro_batches_ = 0;
  std::function<void(int)> on_bucket_ready_;
};

}  // namespace potato
