// Element types and the one place where a run-time dtype becomes a C++ type.
#pragma once

#include <cstdint>
#include <string_view>

#include "potato/core/error.hpp"
#include "potato/core/half.hpp"

namespace potato {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

// Bytes of one element.
constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

std::string_view dtype_name(DType dtype);

template <typename T>
inline constexpr DType dtype_of = DType::u8;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<Float16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;

// What values of `dtype` are computed and summed in: statistics, losses and gradients have it.
constexpr DType compute_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// Calls `body(T{})` with T = float, double, BFloat16 or Float16; throws Error for another dtype.
template <typename Body>
decltype(auto) dispatch_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    case DType::bf16:
      return body(BFloat16{});
    case DType::f16:
      return body(Float16{});
    default:
      throw Error(cat("dtype ", dtype_name(dtype), " is not supported here"));
  }
}

// Calls `body(T{})` with T = float or double; throws Error for another dtype.
template <typename Body>
decltype(auto) dispatch_real(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    default:
      throw Error(cat("dtype ", dtype_name(dtype), " is not supported here"));
  }
}

}  // namespace potato
