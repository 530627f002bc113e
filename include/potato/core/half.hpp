// 16-bit floating point numbers as they lie in memory; arithmetic happens in float.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace potato {

// bfloat16: a float without its low 16 bits.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) : bits(rounded(value)) {}
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

 private:
  // To nearest, ties to even; a NaN stays one.
  static std::uint16_t rounded(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((word >> 16) | 0x40U);
    return static_cast<std::uint16_t>((word + 0x7FFFU + ((word >> 16) & 1U)) >> 16);
  }
};

// IEEE binary16.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) : bits(std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))) {}
  explicit operator float() const { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
};

template <typename T>
inline constexpr bool is_half = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// What values of a stored type are computed and summed in.
template <typename Stored>
using Compute = std::conditional_t<is_half<Stored>, float, Stored>;

}  // namespace potato
