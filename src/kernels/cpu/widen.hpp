// 16-bit tensors for CPU twins, which compute in float (or double): arguments that widen on the way in and round on the
// way out. Each lives until the end of the full expression that calls the twin:
//
//   cpu::layernorm_forward<Compute<S>>(In(x, n), ..., Out(y, n), ...);
//
// For float and double they are the pointer itself, without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "potato/core/half.hpp"

namespace potato::cpu {

// Float memory of this thread, given out and taken back like a stack; it only grows, in the first step.
class WideScratch {
 public:
  static WideScratch& of_thread() {
    static thread_local WideScratch scratch;
    return scratch;
  }

  float* take(std::int64_t num_elems) {
    if (depth_ == blocks_.size()) blocks_.emplace_back();
    std::vector<float>& block = blocks_[depth_++];
    if (block.size() < static_cast<std::size_t>(num_elems)) block.resize(static_cast<std::size_t>(num_elems));
    return block.data();
  }
  void give_back() noexcept { --depth_; }

 private:
  std::vector<std::vector<float>> blocks_;
  std::size_t depth_ = 0;
};

template <typename Stored>
void widen(const Stored* in, float* out, std::int64_t num_elems) {
#pragma omp parallel for simd schedule(static) if (num_elems > 65536)
  for (std::int64_t i = 0; i < num_elems; ++i) out[i] = static_cast<float>(in[i]);
}

template <typename Stored>
void round_to(const float* in, Stored* out, std::int64_t num_elems) {
#pragma omp parallel for simd schedule(static) if (num_elems > 65536)
  for (std::int64_t i = 0; i < num_elems; ++i) out[i] = Stored(in[i]);
}

// One tensor of `num_elems`; `reads` and `writes` say which way its values go.
template <typename Stored, bool reads, bool writes>
class Widened {
 public:
  using Pointer = std::conditional_t<writes, Stored*, const Stored*>;
  using Wide = std::conditional_t<writes, Compute<Stored>*, const Compute<Stored>*>;

  Widened(Pointer stored, std::int64_t num_elems) : stored_(stored), num_elems_(num_elems) {
    if constexpr (is_half<Stored>) {
      if (stored == nullptr) return;
      wide_ = WideScratch::of_thread().take(num_elems);
      if constexpr (reads) widen(stored, wide_, num_elems);
    }
  }
  ~Widened() {
    if constexpr (is_half<Stored>) {
      if (stored_ == nullptr) return;
      if constexpr (writes) round_to(wide_, stored_, num_elems_);
      WideScratch::of_thread().give_back();
    }
  }
  Widened(const Widened&) = delete;
  Widened& operator=(const Widened&) = delete;

  operator Wide() const {  // NOLINT(google-explicit-constructor)
    if constexpr (is_half<Stored>) {
      return wide_;
    } else {
      return stored_;
    }
  }

 private:
  Pointer stored_;
  std::int64_t num_elems_;
  float* wide_ = nullptr;
};

template <typename Stored>
struct In : Widened<Stored, true, false> {
  using Widened<Stored, true, false>::Widened;
};
template <typename Stored>
In(const Stored*, std::int64_t) -> In<Stored>;

template <typename Stored>
struct Out : Widened<Stored, false, true> {
  using Widened<Stored, false, true>::Widened;
};
template <typename Stored>
Out(Stored*, std::int64_t) -> Out<Stored>;

template <typename Stored>
struct InOut : Widened<Stored, true, true> {
  using Widened<Stored, true, true>::Widened;
};
template <typename Stored>
InOut(Stored*, std::int64_t) -> InOut<Stored>;

}  // namespace potato::cpu
