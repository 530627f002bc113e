#include "potato/params/registry.hpp"

#include <algorithm>
#include <utility>

#include "potato/core/philox.hpp"
#include "potato/kernels/elementwise.hpp"

namespace potato {

namespace {

constexpr std::int64_t alignment_elems = 64;  // of each parameter in the flat storage

std::int64_t rounded(std::int64_t num_elems, std::int64_t multiple) {
  return (num_elems + multiple - 1) / multiple * multiple;
}

TensorView slice(TensorView flat, std::int64_t offset_elems, Shape shape) {
  return flat.rows(offset_elems, shape.num_elems()).reshaped(shape);
}

// The elements [begin, end) of a piece, in the order of its storage: part of a row, whole rows, part of a row.
std::vector<Piece> cut_piece(const Piece& piece, std::int64_t begin, std::int64_t end) {
  std::vector<Piece> parts;
  const std::int64_t width = piece.count[1];
  while (begin < end) {
    const std::int64_t row = begin / width;
    const std::int64_t column = begin % width;
    const bool is_whole = column == 0 && end - begin >= width;
    Piece part = piece;
    part.begin = {piece.begin[0] + row, piece.begin[1] + column};
    part.count = {is_whole ? (end - begin) / width : 1, is_whole ? width : std::min(width - column, end - begin)};
    part.offset_elems = begin;
    begin += part.num_elems();
    parts.push_back(std::move(part));
  }
  return parts;
}

template <typename T>
void initialize_piece(const ParameterSpec& spec, const Piece& piece, T* values, std::uint64_t seed, int threads) {
  const PhiloxKey key = philox_key(seed, "init." + piece.name);
#pragma omp parallel for schedule(static) num_threads(threads) if (piece.num_elems() > 65536)
  for (std::int64_t row = 0; row < piece.count[0]; ++row) {
    T* line = values + row * piece.count[1];
    switch (spec.init) {
      case InitKind::zeros:
        std::fill_n(line, piece.count[1], T{0});
        break;
      case InitKind::ones:
        std::fill_n(line, piece.count[1], T{1});
        break;
      case InitKind::normal:
        normal_row(key, static_cast<std::uint64_t>(piece.begin[0] + row), static_cast<std::uint64_t>(piece.begin[1]),
                   piece.count[1], spec.init_std, line);
        break;
    }
  }
}

}  // namespace

int ParameterRegistry::begin_unit(int group) {
  unit_groups_.push_back(group);
  return num_units() - 1;
}

Parameter& ParameterRegistry::declare(ParameterSpec spec) {
  PC_CHECK(!weights_.is_held(), "declare(", spec.name, ") after allocate()");
  for (const auto& piece : spec.pieces) {
    PC_CHECK(piece.offset_elems + piece.num_elems() <= spec.shape.num_elems(), piece.name, " leaves ", spec.name);
  }
  if (unit_groups_.empty()) begin_unit(0);
  Parameter& parameter = parameters_.emplace_back();
  parameter.spec = std::move(spec);
  parameter.spec.unit = num_units() - 1;
  return parameter;
}

void ParameterRegistry::add_bucket(Sharing sharing, std::vector<Parameter*> members) {
  Bucket bucket;
  bucket.sharing = sharing;
  bucket.begin_elems = num_flat_elems_;
  bucket.shard_begin_elems = num_shard_elems_;
  for (const Parameter* parameter : members) {
    if (bucket.units.empty() || bucket.units.back() != parameter->spec.unit)
      bucket.units.push_back(parameter->spec.unit);
  }
  std::stable_partition(members.begin(), members.end(), [](const Parameter* p) { return p->spec.decay; });
  for (Parameter* parameter : members) {
    parameter->flat_offset_elems = num_flat_elems_;
    parameter->bucket = static_cast<int>(buckets_.size());
    num_flat_elems_ += rounded(parameter->spec.shape.num_elems(), alignment_elems);
  }
  bucket.num_elems = rounded(num_flat_elems_ - bucket.begin_elems, num_cuts() * alignment_elems);
  if (bucket.num_elems == 0) return;
  num_flat_elems_ = bucket.begin_elems + bucket.num_elems;
  num_shard_elems_ += shard_elems(bucket);
  bucket.parameters = std::move(members);
  buckets_.push_back(std::move(bucket));
}

void ParameterRegistry::form_buckets() {
  const auto group_of = [&](int unit) { return unit_groups_[static_cast<std::size_t>(unit)]; };
  for (const Sharing sharing : {Sharing::sharded, Sharing::tied, Sharing::replicated}) {
    std::vector<Parameter*> members;
    std::int64_t num_elems = 0;
    const auto close = [&] {
      if (!members.empty()) add_bucket(sharing, std::exchange(members, {}));
      num_elems = 0;
    };
    for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
      const ParameterSpec& spec = parameter->spec;
      const bool is_apart = spec.sharing == Sharing::replicated && options_.replicated_apart;
      const Sharing kind = spec.sharing == Sharing::replicated && !is_apart ? Sharing::sharded : spec.sharing;
      if (kind != sharing) continue;
      const bool is_full = num_elems >= options_.bucket_elems;
      if (!members.empty()) {
        const int last_unit = members.back()->spec.unit;
        const bool is_new_unit = last_unit != spec.unit;
        const bool is_new_group = group_of(last_unit) != group_of(spec.unit);
        if (shards_weights()     ? is_new_unit
            : shards_gradients() ? is_new_group || (is_new_unit && is_full)
                                 : is_full && !is_apart) {
          close();
        }
      }
      members.push_back(&*parameter);
      num_elems += rounded(spec.shape.num_elems(), alignment_elems);
    }
    close();
  }
}

void ParameterRegistry::allocate(const StorageArenas& arenas, const StorageOptions& options) {
  PC_CHECK(options.bucket_elems > 0 && options.num_shards > 0 && !weights_.is_held(), "allocate() runs once");
  options_ = options;
  form_buckets();
  find_own_pieces();
  const DType compute = compute_dtype(options.dtype);
  weights_ = Tensor(arenas.weights, options.dtype, {shards_weights() ? num_shard_elems_ : num_flat_elems_});
  gradients_ = Tensor(arenas.gradients, compute, {shards_gradients() ? num_shard_elems_ : num_flat_elems_});
  if (options.dtype != compute || options.master_apart) master_ = Tensor(arenas.master, compute, {num_shard_elems_});
  whole_gradients_.resize(buckets_.size());
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i) {
    if (shards_gradients() && accumulates_whole_step(i)) {
      whole_gradients_[static_cast<std::size_t>(i)] = Tensor(arenas.gradients, compute, {bucket(i).num_elems});
    }
    if (!shards_weights()) place_weights(i, bucket_weights(i));
  }
}

void ParameterRegistry::place_weights(int index, TensorView memory) {
  const Bucket& of = bucket(index);
  for (Parameter* parameter : of.parameters) {
    parameter->weight = slice(memory, parameter->flat_offset_elems - of.begin_elems, parameter->spec.shape);
  }
}

bool ParameterRegistry::accumulates_whole_step(int index) const {
  return !shards_gradients() || bucket(index).sharing == Sharing::tied;
}

TensorView ParameterRegistry::bucket_weights(int index) const {
  PC_CHECK(!shards_weights(), "no rank keeps whole weights");
  return weights_.view().rows(bucket(index).begin_elems, bucket(index).num_elems);
}

TensorView ParameterRegistry::bucket_gradients(int index) const {
  PC_CHECK(accumulates_whole_step(index), "bucket ", index, ": no rank keeps whole gradients");
  if (shards_gradients()) return whole_gradients_[static_cast<std::size_t>(index)].view();
  return gradients_.view().rows(bucket(index).begin_elems, bucket(index).num_elems);
}

TensorView ParameterRegistry::shard_of(int index, TensorView whole) const {
  const std::int64_t num_elems = shard_elems(bucket(index));
  return whole.rows(own_cut() * num_elems, num_elems);
}

TensorView ParameterRegistry::shard_in(int index, TensorView shards) const {
  return shards.rows(bucket(index).shard_begin_elems, shard_elems(bucket(index)));
}

TensorView ParameterRegistry::weight_shard(int index) const {
  return shards_weights() ? shard_in(index, weights_) : shard_of(index, bucket_weights(index));
}

TensorView ParameterRegistry::gradient_shard(int index) const {
  return accumulates_whole_step(index) ? shard_of(index, bucket_gradients(index)) : shard_in(index, gradients_);
}

TensorView ParameterRegistry::master_shard(int index) const {
  return has_master() ? shard_in(index, master_) : weight_shard(index);
}

TensorView ParameterRegistry::piece_view(const Piece& piece, TensorView storage) {
  return slice(storage.reshaped({storage.num_elems()}), piece.offset_elems, {piece.count[0], piece.count[1]});
}

void ParameterRegistry::find_own_pieces() {
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i) {
    const Bucket& of = bucket(i);
    const std::int64_t begin = of.begin_elems + own_cut() * shard_elems(of);
    for (const Parameter* parameter : of.parameters) {
      for (const Piece& piece : parameter->spec.pieces) {
        const std::int64_t piece_begin = parameter->flat_offset_elems + piece.offset_elems;
        const FlatRange cut{std::max(begin - piece_begin, std::int64_t{0}),
                            std::min(begin + shard_elems(of) - piece_begin, piece.num_elems())};
        for (Piece& part : cut_piece(piece, cut.begin_elems, cut.num_elems)) {
          part.offset_elems += piece_begin - begin;
          own_pieces_.push_back({std::move(part), parameter});
        }
      }
    }
  }
}

void ParameterRegistry::initialize(std::uint64_t seed, Stream& stream) {
  zero(weights_, stream);
  zero(gradients_, stream);
  for (const Tensor& whole : whole_gradients_) {
    if (whole.is_held()) zero(whole, stream);
  }
  if (has_master()) zero(master_, stream);
  stream.synchronize();
  if (stream.device().kind == DeviceKind::dry) return;
  dispatch_real(compute_dtype(options_.dtype), [&](auto zero_value) {
    using T = decltype(zero_value);
    std::vector<T> staged;
    for (const OwnPiece& own : own_pieces_) {
      const Piece& piece = own.piece;
      const TensorView place = master_shard(own.parameter->bucket).rows(piece.offset_elems, piece.num_elems());
      const ParameterSpec& spec = own.parameter->spec;
      if (place.device.kind == DeviceKind::cpu) {
        initialize_piece(spec, piece, place.as<T>(), seed, stream.threads());
        continue;
      }
      staged.resize(std::max(staged.size(), static_cast<std::size_t>(piece.num_elems())));
      initialize_piece(spec, piece, staged.data(), seed, stream.threads());
      stream.transfer(place.data, staged.data(), place.num_bytes());
      stream.synchronize();
    }
  });
  refresh_weights(stream);
}

void ParameterRegistry::refresh_weights(Stream& stream) {
  if (!has_master()) return;
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i) publish(i, stream);
  stream.synchronize();
}

void ParameterRegistry::publish(int index, Stream& stream) {
  const TensorView master = master_shard(index);
  const TensorView weights = weight_shard(index);
  if (options_.master_on_host && options_.weights_on_host) {
    StreamOptions options;
    options.threads = stream.threads();
    options.inline_mode = true;
    stream.synchronize();
    Stream host(Device{}, options);
    convert(master, weights, host);
    return;
  }
  // Between host and device by way of the gradients' memory, which holds as many elements of the compute dtype.
  const TensorView gradients = gradient_shard(index);
  if (options_.master_on_host) {
    stream.transfer(gradients.data, master.data, master.num_bytes());
    convert(gradients, weights, stream);
  } else if (options_.weights_on_host) {
    const TensorView rounded_master(gradients.data, weights.dtype, weights.shape, gradients.device);
    convert(master, rounded_master, stream);
    stream.transfer(weights.data, rounded_master.data, weights.num_bytes());
  } else {
    convert(master, weights, stream);
  }
}

std::vector<ShardRange> ParameterRegistry::shard_ranges(const std::function<bool(const Parameter&)>& chosen) const {
  std::vector<ShardRange> joined;
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i) {
    const Bucket& of = bucket(i);
    const std::int64_t begin = of.begin_elems + own_cut() * shard_elems(of);
    const std::int64_t end = begin + shard_elems(of);
    for (const Parameter* parameter : of.parameters) {
      if (!chosen(*parameter)) continue;
      const std::int64_t from = std::max(begin, parameter->flat_offset_elems);
      const std::int64_t to =
          std::min(end, parameter->flat_offset_elems + rounded(parameter->spec.shape.num_elems(), alignment_elems));
      if (from >= to) continue;
      if (!joined.empty() && joined.back().bucket == i &&
          joined.back().begin_elems + joined.back().num_elems == from - begin) {
        joined.back().num_elems += to - from;
      } else {
        joined.push_back({i, from - begin, to - from});
      }
    }
  }
  return joined;
}

std::int64_t ParameterRegistry::num_owned_elems() const noexcept {
  std::int64_t total = 0;
  for (const OwnPiece& own : own_pieces_) {
    if (own.parameter->spec.is_owner) total += own.piece.num_elems();
  }
  return total;
}

void ParameterRegistry::begin_gradients(Bucket& of, TensorView memory, Stream& stream) {
  std::int64_t end = 0;  // of what kernels write, in the bucket
  for (Parameter* parameter : of.parameters) {
    const std::int64_t begin = parameter->flat_offset_elems - of.begin_elems;
    parameter->gradient = slice(memory, begin, parameter->spec.shape);
    parameter->accumulations = 0;
    // Matrices come first and are overwritten. Padding after each, and all that follows them, starts at 0.
    if (!parameter->spec.decay) continue;
    if (begin > end) fill(memory.rows(end, begin - end), 0, stream);
    end = begin + parameter->spec.shape.num_elems();
  }
  if (of.num_elems > end) fill(memory.rows(end, of.num_elems - end), 0, stream);
  of.num_ready = 0;
}

void ParameterRegistry::begin_step(std::int64_t num_micro_batches, Stream& stream) {
  num_micro_batches_ = num_micro_batches;
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i) {
    if (accumulates_whole_step(i)) begin_gradients(buckets_[static_cast<std::size_t>(i)], bucket_gradients(i), stream);
  }
}

void ParameterRegistry::begin_bucket(int index, TensorView memory, Stream& stream) {
  PC_CHECK(!accumulates_whole_step(index), "bucket ", index, " accumulates over the whole step");
  begin_gradients(buckets_[static_cast<std::size_t>(index)], memory, stream);
}

void ParameterRegistry::zero_if_first(Parameter& parameter, Stream& stream) {
  if (parameter.accumulations == 0 && parameter.spec.decay) fill(parameter.gradient, 0, stream);
}

void ParameterRegistry::accumulated(Parameter& parameter) {
  const std::int64_t num_micro_batches = accumulates_whole_step(parameter.bucket) ? num_micro_batches_ : 1;
  const std::int64_t expected = num_micro_batches * parameter.spec.uses_per_micro_batch;
  PC_CHECK(++parameter.accumulations <= expected, parameter.spec.name, ": more than ", expected, " accumulations");
  if (parameter.accumulations < expected) return;
  Bucket& of = buckets_[static_cast<std::size_t>(parameter.bucket)];
  if (++of.num_ready == of.parameters.size() && on_bucket_ready_) on_bucket_ready_(parameter.bucket);
}

}  // namespace potato
