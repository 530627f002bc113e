// Exponential and hyperbolic tangent without branches or tables, so that `#pragma omp simd` loops vectorise.
//
// exp(x) = 2^n · exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2, exp(r) by its Taylor series. Rounding to an
// integer is an addition of 1.5 · 2^(mantissa bits), whose low bits then hold n. Relative error of exp: 2e-7 (float),
// 4e-16 (double); of tanh about twice that, near 0 too. exp(−inf) = 0, overflow is inf, NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace potato::cpu {

namespace vector_math {

constexpr float round_f32 = 12582912.0F;          // 1.5 · 2^23
constexpr double round_f64 = 6755399441055744.0;  // 1.5 · 2^52
constexpr double log2_e = 1.4426950408889634074;
constexpr float ln2_high_f32 = 0.693359375F;  // few bits: products with n are exact
constexpr float ln2_low_f32 = -2.12194440e-4F;
constexpr double ln2_high_f64 = 6.93147180369123816490e-01;
constexpr double ln2_low_f64 = 1.90821492927058770002e-10;

// 2^n from n + round_*, for exponents in the normal range.
inline float power_of_two(float n_shifted) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(n_shifted) + 127U) << 23);
}
inline double power_of_two(double n_shifted) {
  return std::bit_cast<double>((std::bit_cast<std::uint64_t>(n_shifted) + 1023U) << 52);
}

// exp(r) − 1 for |r| <= ln(2) / 2.
inline float expm1_reduced(float r) {
  float sum = 1.0F / 5040;
  sum = sum * r + 1.0F / 720;
  sum = sum * r + 1.0F / 120;
  sum = sum * r + 1.0F / 24;
  sum = sum * r + 1.0F / 6;
  sum = sum * r + 0.5F;
  return (sum * r) * r + r;
}
inline double expm1_reduced(double r) {
  double sum = 1.0 / 6227020800.0;
  sum = sum * r + 1.0 / 479001600.0;
  sum = sum * r + 1.0 / 39916800.0;
  sum = sum * r + 1.0 / 3628800.0;
  sum = sum * r + 1.0 / 362880.0;
  sum = sum * r + 1.0 / 40320.0;
  sum = sum * r + 1.0 / 5040.0;
  sum = sum * r + 1.0 / 720.0;
  sum = sum * r + 1.0 / 120.0;
  sum = sum * r + 1.0 / 24.0;
  sum = sum * r + 1.0 / 6.0;
  sum = sum * r + 0.5;
  return (sum * r) * r + r;
}

}  // namespace vector_math

inline float fast_exp(float x) {
  using namespace vector_math;
  x = x < -104.0F ? -104.0F : x;  // exp is 0 below, inf above
  x = x > 89.0F ? 89.0F : x;
  const float n = (x * static_cast<float>(log2_e) + round_f32) - round_f32;
  const float r = (x - n * ln2_high_f32) - n * ln2_low_f32;
  // In two factors, since 2^n alone may overflow or be subnormal.
  const float half_shifted = n * 0.5F + round_f32;
  const float rest_shifted = (n - (half_shifted - round_f32)) + round_f32;
  return (expm1_reduced(r) + 1.0F) * power_of_two(half_shifted) * power_of_two(rest_shifted);
}

inline double fast_exp(double x) {
  using namespace vector_math;
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  const double n = (x * log2_e + round_f64) - round_f64;
  const double r = (x - n * ln2_high_f64) - n * ln2_low_f64;
  const double half_shifted = n * 0.5 + round_f64;
  const double rest_shifted = (n - (half_shifted - round_f64)) + round_f64;
  return (expm1_reduced(r) + 1.0) * power_of_two(half_shifted) * power_of_two(rest_shifted);
}

// tanh|x| = −e / (2 + e) with e = exp(−2|x|) − 1, which keeps its relative accuracy near 0.
inline float fast_tanh(float x) {
  using namespace vector_math;
  float y = -2.0F * std::fabs(x);
  y = y < -40.0F ? -40.0F : y;
  const float n_shifted = y * static_cast<float>(log2_e) + round_f32;
  const float n = n_shifted - round_f32;
  const float r = (y - n * ln2_high_f32) - n * ln2_low_f32;
  const float power = power_of_two(n_shifted);
  const float e = power * expm1_reduced(r) + (power - 1.0F);
  return std::copysign(e / (2.0F + e), x);
}

inline double fast_tanh(double x) {
  using namespace vector_math;
  double y = -2.0 * std::fabs(x);
  y = y < -80.0 ? -80.0 : y;
  const double n_shifted = y * log2_e + round_f64;
  const double n = n_shifted - round_f64;
  const double r = (y - n * ln2_high_f64) - n * ln2_low_f64;
  const double power = power_of_two(n_shifted);
  const double e = power * expm1_reduced(r) + (power - 1.0);
  return std::copysign(e / (2.0 + e), x);
}

}  // namespace potato::cpu
