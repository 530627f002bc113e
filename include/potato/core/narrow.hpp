// The one checked narrowing function: sizes are int64_t here, but MPI, BLAS and HDF5 take int or unsigned.
#pragma once

#include <type_traits>

#include "potato/core/error.hpp"

namespace potato {

// Converts between integer types; throws Error where the value does not fit.
template <typename To, typename From>
To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const To converted = static_cast<To>(value);
  PC_CHECK(static_cast<From>(converted) == value && ((converted < To{}) == (value < From{})), "value ", value,
           " does not fit the narrower type");
  return converted;
}

}  // namespace potato
