#include "potato/params/registry.hpp"

#include <algorithm>

#include "potato/core/philox.hpp"
#include "potato/kernels/elementwise.hpp"

namespace potato {

namespace {

constexpr std::int64_t alignment_elems = 64;  // of each parameter in the flat storage

std::int64_t rounded(std::int64_t num_elems) {
  return (num_elems + alignment_elems - 1) / alignment_elems * alignment_elems;
}

TensorView slice(TensorView flat, std::int64_t offset_elems, Shape shape) {
  return flat.rows(offset_elems, shape.num_elems()).reshaped(shape);
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

Parameter& ParameterRegistry::declare(ParameterSpec spec) {
  PC_CHECK(!weights_.is_held(), "declare(", spec.name, ") after allocate()");
  for (const auto& piece : spec.pieces) {
    PC_CHECK(piece.offset_elems + piece.num_elems() <= spec.shape.num_elems(), piece.name, " leaves ", spec.name);
  }
  Parameter& parameter = parameters_.emplace_back();
  parameter.spec = std::move(spec);
  return parameter;
}

void ParameterRegistry::add_bucket(Sharing sharing, std::vector<Parameter*> members) {
  Bucket bucket;
  bucket.sharing = sharing;
  bucket.begin_elems = num_flat_elems_;
  std::stable_partition(members.begin(), members.end(), [](const Parameter* p) { return p->spec.decay; });
  for (Parameter* parameter : members) {
    parameter->flat_offset_elems = num_flat_elems_;
    parameter->bucket = static_cast<int>(buckets_.size());
    num_flat_elems_ += rounded(parameter->spec.shape.num_elems());
    ++bucket.num_parameters;
  }
  bucket.num_elems = num_flat_elems_ - bucket.begin_elems;
  if (bucket.num_elems > 0) buckets_.push_back(bucket);
}

void ParameterRegistry::allocate(Arena& weights, Arena& gradients, Arena& master, DType dtype,
                                 std::int64_t bucket_elems) {
  PC_CHECK(bucket_elems > 0 && !weights_.is_held(), "allocate() runs once");
  for (const Sharing sharing : {Sharing::sharded, Sharing::tied, Sharing::replicated}) {
    std::vector<Parameter*> members;
    std::int64_t num_elems = 0;
    for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
      if (parameter->spec.sharing != sharing) continue;
      members.push_back(&*parameter);
      num_elems += rounded(parameter->spec.shape.num_elems());
      if (num_elems >= bucket_elems && sharing != Sharing::replicated) {
        add_bucket(sharing, members);
        members.clear();
        num_elems = 0;
      }
    }
    if (!members.empty()) add_bucket(sharing, members);
  }
  weights_ = Tensor(weights, dtype, {num_flat_elems_});
  gradients_ = Tensor(gradients, compute_dtype(dtype), {num_flat_elems_});
  if (dtype != compute_dtype(dtype)) master_ = Tensor(master, compute_dtype(dtype), {num_flat_elems_});
  for (auto& parameter : parameters_) {
    parameter.weight = slice(weights_, parameter.flat_offset_elems, parameter.spec.shape);
    parameter.gradient = slice(gradients_, parameter.flat_offset_elems, parameter.spec.shape);
  }
  vectors_ = ranges([](const Parameter& parameter) { return !parameter.spec.decay; });
}

void ParameterRegistry::initialize(std::uint64_t seed, Stream& stream) {
  fill(master(), 0, stream);
  fill(gradients(), 0, stream);
  stream.synchronize();
  const Device device = master().device;
  if (device.kind == DeviceKind::dry) return;
  dispatch_real(master().dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> staged;
    for (const auto& parameter : parameters_) {
      for (const auto& piece : parameter.spec.pieces) {
        T* values = piece_view(parameter, piece, master()).as<T>();
        if (device.kind == DeviceKind::cpu) {
          initialize_piece(parameter.spec, piece, values, seed, stream.threads());
          continue;
        }
        staged.resize(std::max(staged.size(), static_cast<std::size_t>(piece.num_elems())));
        initialize_piece(parameter.spec, piece, staged.data(), seed, stream.threads());
        stream.transfer(values, staged.data(), piece.num_elems() * static_cast<std::int64_t>(sizeof(T)));
        stream.synchronize();
      }
    }
  });
  refresh_working_copies(stream);
  stream.synchronize();
}

void ParameterRegistry::refresh_working_copies(Stream& stream) {
  if (has_working_copies()) convert(master(), weights(), stream);
}

std::vector<FlatRange> ParameterRegistry::ranges(const std::function<bool(const Parameter&)>& chosen) const {
  std::vector<const Parameter*> in_order;
  in_order.reserve(parameters_.size());
  for (const auto& parameter : parameters_) in_order.push_back(&parameter);
  std::sort(in_order.begin(), in_order.end(),
            [](const Parameter* a, const Parameter* b) { return a->flat_offset_elems < b->flat_offset_elems; });
  std::vector<FlatRange> joined;
  for (const Parameter* parameter : in_order) {
    if (!chosen(*parameter)) continue;
    const std::int64_t begin = parameter->flat_offset_elems;
    const std::int64_t num_elems = rounded(parameter->spec.shape.num_elems());
    if (!joined.empty() && joined.back().begin_elems + joined.back().num_elems == begin) {
      joined.back().num_elems += num_elems;
    } else {
      joined.push_back({begin, num_elems});
    }
  }
  return joined;
}

std::int64_t ParameterRegistry::num_owned_elems() const noexcept {
  std::int64_t total = 0;
  for (const auto& parameter : parameters_) {
    if (!parameter.spec.is_owner) continue;
    for (const auto& piece : parameter.spec.pieces) total += piece.num_elems();
  }
  return total;
}

TensorView ParameterRegistry::piece_view(const Parameter& parameter, const Piece& piece, TensorView flat) {
  return slice(flat, parameter.flat_offset_elems + piece.offset_elems, {piece.count[0], piece.count[1]});
}

void ParameterRegistry::begin_step(std::int64_t num_micro_batches, Stream& stream) {
  num_micro_batches_ = num_micro_batches;
  for (const FlatRange& range : vectors_) fill(gradients().rows(range.begin_elems, range.num_elems), 0, stream);
  for (auto& parameter : parameters_) parameter.accumulations = 0;
  for (auto& bucket : buckets_) bucket.num_ready = 0;
}

void ParameterRegistry::zero_if_first(Parameter& parameter, Stream& stream) {
  if (parameter.accumulations == 0 && parameter.spec.decay) fill(parameter.gradient, 0, stream);
}

void ParameterRegistry::accumulated(Parameter& parameter) {
  const std::int64_t expected = num_micro_batches_ * parameter.spec.uses_per_micro_batch;
  PC_CHECK(++parameter.accumulations <= expected, parameter.spec.name, ": more than ", expected, " accumulations");
  if (parameter.accumulations < expected) return;
  Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
  if (++bucket.num_ready == bucket.num_parameters && on_bucket_ready_) on_bucket_ready_(parameter.bucket);
}

}  // namespace potato
