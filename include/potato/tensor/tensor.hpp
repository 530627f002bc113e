// Views of row-major tensors, and the tensor that owns its part of an arena.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "potato/core/dtype.hpp"
#include "potato/core/shape.hpp"
#include "potato/device/arena.hpp"
#include "potato/device/device.hpp"

namespace potato {

// A dense row-major tensor that belongs to somebody else. Constness is in the type: Void is void or const void.
template <typename Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Device device;

  BasicTensorView() = default;
  BasicTensorView(Void* memory, DType type, Shape dims, Device place)
      : data(memory), dtype(type), shape(dims), device(place) {}
  // A mutable view is also a const one.
  template <typename Other, typename = std::enable_if_t<std::is_const_v<Void> && !std::is_const_v<Other>>>
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), dtype(other.dtype), shape(other.shape), device(other.device) {}

  std::int64_t num_elems() const noexcept { return shape.num_elems(); }
  std::int64_t num_bytes() const noexcept { return num_elems() * dtype_bytes(dtype); }
  std::int64_t dim(int i) const noexcept { return shape[i]; }

  // Typed pointer; throws Error on another dtype.
  template <typename T>
  auto as() const {
    PC_CHECK(dtype == dtype_of<T>, "dtype is ", dtype_name(dtype));
    return static_cast<std::conditional_t<std::is_const_v<Void>, const T*, T*>>(data);
  }

  // The same memory under another shape of as many elements.
  BasicTensorView reshaped(Shape dims) const {
    PC_CHECK(dims.num_elems() == num_elems(), "cannot view ", shape, " as ", dims);
    return {data, dtype, dims, device};
  }

  // `count` rows (slices of the first dim) from `begin`.
  BasicTensorView rows(std::int64_t begin, std::int64_t count) const {
    PC_CHECK(shape.num_dims() >= 1 && begin >= 0 && count >= 0 && begin + count <= shape[0], "rows ", begin, " + ",
             count, " of ", shape);
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    const std::int64_t row_elems = shape[0] == 0 ? 0 : num_elems() / shape[0];
    Shape dims;
    switch (shape.num_dims()) {
      case 1:
        dims = {count};
        break;
      case 2:
        dims = {count, shape[1]};
        break;
      case 3:
        dims = {count, shape[1], shape[2]};
        break;
      default:
        dims = {count, shape[1], shape[2], shape[3]};
    }
    return {static_cast<Byte*>(data) + begin * row_elems * dtype_bytes(dtype), dtype, dims, device};
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

// A tensor in an arena; move-only; gives its memory back when it ends.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Arena& arena, DType dtype, Shape shape)
      : arena_(&arena), view_(arena.allocate(shape.num_elems() * dtype_bytes(dtype)), dtype, shape, arena.device()) {}
  ~Tensor() { reset(); }
  Tensor(Tensor&& other) noexcept : arena_(std::exchange(other.arena_, nullptr)), view_(other.view_) {}
  Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) {
      reset();
      arena_ = std::exchange(other.arena_, nullptr);
      view_ = other.view_;
    }
    return *this;
  }

  void reset() noexcept {
    if (arena_ != nullptr) arena_->release(view_.data, view_.num_bytes());
    arena_ = nullptr;
  }
  bool is_held() const noexcept { return arena_ != nullptr; }

  const TensorView& view() const {
    PC_CHECK(arena_ != nullptr, "the tensor was released");
    return view_;
  }
  operator const TensorView&() const { return view(); }  // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view(); }    // NOLINT(google-explicit-constructor)

 private:
  Arena* arena_ = nullptr;
  TensorView view_;
};

}  // namespace potato
