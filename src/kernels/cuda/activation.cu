// All by map_rows (see elementwise.hpp): tiles of rows and columns, one read or write of each element. Elements moved:
// add_bias 2, bias_backward 1, bias_gelu_forward 3, gelu_forward 2, gelu_bias_backward 3. Deterministic.
#include "activation.hpp"
#include "common.cuh"
#include "elementwise.hpp"

namespace potato::cuda {

namespace {

constexpr double sqrt_2_over_pi = 0.79788456080286535588;
constexpr double cubic = 0.044715;
constexpr double log2_e = 1.4426950408889634074;

// exp(−2u) with u = sqrt(2/π) · (x + 0.044715 x³), as the CPU twin has it: with it 0.5 · (1 + tanh(u)) =
// 1 / (1 + exp(−2u)) without cancellation. Bounded so that its inverse is normal; NaN stays. ex2.approx is good to
// 2 ulp, so this serves fp32 too. Operations are spelled out: forward and recompute must agree bitwise.
__device__ __forceinline__ float exp_minus_2u(float x, float x_squared) {
  constexpr auto a = static_cast<float>(-2 * sqrt_2_over_pi * log2_e);
  constexpr auto b = static_cast<float>(-2 * sqrt_2_over_pi * log2_e * cubic);
  const float power = __fmul_rn(x, __fmaf_rn(b, x_squared, a));
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power > 115.0F ? 115.0F : power));
  return result;
}

__device__ __forceinline__ float gelu(float x) {
  return __fdividef(x, __fadd_rn(1.0F, exp_minus_2u(x, __fmul_rn(x, x))));
}

__device__ __forceinline__ float gelu_derivative(float x) {
  const float x_squared = x * x;
  const float e = exp_minus_2u(x, x_squared);
  const float gate = __fdividef(1.0F, 1.0F + e);
  constexpr auto a = static_cast<float>(2 * sqrt_2_over_pi);
  constexpr auto b = static_cast<float>(6 * sqrt_2_over_pi * cubic);
  return gate + x * (a + b * x_squared) * (gate * (e * gate));
}

struct NoState {};

template <typename T, int N>
struct AddBias {
  static constexpr int num_inputs = 1;
  static constexpr bool has_sums = false;
  const T* inputs[num_inputs];
  const T* bias;
  T* x;

  __device__ __forceinline__ Pack<T, N> begin(std::int64_t column, std::int64_t) const {
    return load_elems<N>(bias + column);
  }
  __device__ __forceinline__ void apply(const Pack<T, N>& b, std::int64_t, std::int64_t offset, const Pack<T, N>* in,
                                        float*) const {
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.set(i, in[0][i] + b[i]);
    store_elems(x + offset, out);
  }
};

template <typename T, int N>
struct SumRows {
  static constexpr int num_inputs = 1;
  static constexpr bool has_sums = true;
  const T* inputs[num_inputs];

  __device__ __forceinline__ NoState begin(std::int64_t, std::int64_t) const { return {}; }
  __device__ __forceinline__ void apply(NoState, std::int64_t, std::int64_t, const Pack<T, N>* in, float* sums) const {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += in[0][i];
  }
};

template <typename T, int N>
struct BiasGelu {
  static constexpr int num_inputs = 1;
  static constexpr bool has_sums = false;
  const T* inputs[num_inputs];
  const T* bias;
  T* x;
  T* y;

  __device__ __forceinline__ Pack<T, N> begin(std::int64_t column, std::int64_t) const {
    return load_elems<N>(bias + column);
  }
  __device__ __forceinline__ void apply(const Pack<T, N>& b, std::int64_t, std::int64_t offset, const Pack<T, N>* in,
                                        float*) const {
    Pack<T, N> sum, out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum.set(i, in[0][i] + b[i]);
      out.set(i, gelu(sum[i]));  // of the rounded sum, which is what recompute has
    }
    store_elems(x + offset, sum);
    store_elems(y + offset, out);
  }
};

template <typename T, int N>
struct Gelu {
  static constexpr int num_inputs = 1;
  static constexpr bool has_sums = false;
  const T* inputs[num_inputs];
  T* y;

  __device__ __forceinline__ NoState begin(std::int64_t, std::int64_t) const { return {}; }
  __device__ __forceinline__ void apply(NoState, std::int64_t, std::int64_t offset, const Pack<T, N>* in,
                                        float*) const {
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.set(i, gelu(in[0][i]));
    store_elems(y + offset, out);
  }
};

template <typename T, int N>
struct GeluBackward {
  static constexpr int num_inputs = 2;  // dy, x
  static constexpr bool has_sums = true;
  const T* inputs[num_inputs];
  T* dx;

  __device__ __forceinline__ NoState begin(std::int64_t, std::int64_t) const { return {}; }
  __device__ __forceinline__ void apply(NoState, std::int64_t, std::int64_t offset, const Pack<T, N>* in,
                                        float* sums) const {
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gradient = in[0][i] * gelu_derivative(in[1][i]);
      out.set(i, gradient);
      sums[i] += gradient;
    }
    store_elems(dx + offset, out);
  }
};

// Calls body(N) with the elements of a pack as a constant: as many as fit 16 bytes, or 1.
template <typename T, typename Body>
void dispatch_packs(bool fits, const Body& body) {
  if (fits) {
    body(std::integral_constant<int, vector_elems<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void add_bias(TensorView x, ConstTensorView bias, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* x_ = data_of<T>(x);
    const T* b = data_of<T>(bias);
    dispatch_packs<T>(fits_packs<T>(x.dim(1), x_, b), [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(AddBias<T, N>{{x_}, b, x_}, x.dim(0), x.dim(1), nullptr, stream);
    });
  });
}

void bias_backward(ConstTensorView dy, TensorView bias_gradient, Stream& stream) {
  dispatch_device(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dy_ = data_of<T>(dy);
    dispatch_packs<T>(fits_packs<T>(dy.dim(1), dy_), [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(SumRows<T, N>{{dy_}}, dy.dim(0), dy.dim(1), data_of<float>(bias_gradient), stream);
    });
  });
}

void bias_gelu_forward(TensorView x, ConstTensorView bias, TensorView y, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* x_ = data_of<T>(x);
    const T* b = data_of<T>(bias);
    T* y_ = data_of<T>(y);
    dispatch_packs<T>(fits_packs<T>(x.dim(1), x_, b, y_), [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(BiasGelu<T, N>{{x_}, b, x_, y_}, x.dim(0), x.dim(1), nullptr, stream);
    });
  });
}

void gelu_forward(ConstTensorView x, TensorView y, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x_ = data_of<T>(x);
    T* y_ = data_of<T>(y);
    dispatch_packs<T>(fits_packs<T>(x.dim(1), x_, y_), [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(Gelu<T, N>{{x_}, y_}, x.dim(0), x.dim(1), nullptr, stream);
    });
  });
}

void gelu_bias_backward(ConstTensorView dy, ConstTensorView x, TensorView dx, TensorView bias_gradient,
                        Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dy_ = data_of<T>(dy);
    const T* x_ = data_of<T>(x);
    T* dx_ = data_of<T>(dx);
    dispatch_packs<T>(fits_packs<T>(x.dim(1), dy_, x_, dx_), [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(GeluBackward<T, N>{{dy_, x_}, dx_}, x.dim(0), x.dim(1), data_of<float>(bias_gradient), stream);
    });
  });
}

}  // namespace potato::cuda
