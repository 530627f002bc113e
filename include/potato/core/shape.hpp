// The shape of a row-major tensor: up to four dims, kept inline so that no shape ever allocates.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>

#include "potato/core/error.hpp"

namespace potato {

class Shape {
 public:
  static constexpr int max_dims = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    PC_CHECK(dims.size() <= max_dims, "at most four dims");
    for (const std::int64_t dim : dims) {
      PC_CHECK(dim >= 0, "negative dim ", dim);
      dims_[static_cast<std::size_t>(num_dims_++)] = dim;
    }
  }

  int num_dims() const noexcept { return num_dims_; }
  std::int64_t operator[](int dim) const noexcept { return dims_[static_cast<std::size_t>(dim)]; }

  // Number of elements; 1 for a shape without dims.
  std::int64_t num_elems() const noexcept {
    std::int64_t product = 1;
    for (int i = 0; i < num_dims_; ++i) product *= dims_[static_cast<std::size_t>(i)];
    return product;
  }

  friend bool operator==(const Shape& a, const Shape& b) noexcept {
    return a.num_dims_ == b.num_dims_ && a.dims_ == b.dims_;
  }

  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (int i = 0; i < shape.num_dims_; ++i) out << (i ? ", " : "") << shape[i];
    return out << ']';
  }

 private:
  std::array<std::int64_t, max_dims> dims_{};
  int num_dims_ = 0;
};

}  // namespace potato
