// By map_rows (see elementwise.hpp). Elements moved: forward 3, backward 2; the mask is computed again each time, about
// 10 instructions an element (40 where columns come singly). Deterministic.
#include "common.cuh"
#include "dropout.hpp"
#include "elementwise.hpp"

namespace potato::cuda {

namespace {

template <typename T, int N>
struct BranchForward {
  static constexpr int num_inputs = 2;  // x, residual
  static constexpr bool has_sums = false;
  const T* inputs[num_inputs];
  const T* bias;
  T* y;
  DeviceDropout dropout;
  TokenRows rows;

  struct State {
    Pack<T, N> bias;
    std::int64_t channel;
    Token token;
  };
  __device__ __forceinline__ State begin(std::int64_t column, std::int64_t first_row) const {
    return {load_elems<N>(bias + column), column, dropout.is_on ? token_of(rows, first_row) : Token{0, 0}};
  }
  __device__ __forceinline__ void apply(State& state, std::int64_t, std::int64_t offset, const Pack<T, N>* in,
                                        float*) const {
    float mask[N];
#pragma unroll
    for (int i = 0; i < N; ++i) mask[i] = 1;
    if (dropout.is_on) {
      dropout_mask(dropout, state.token, state.channel, mask);
      state.token.advance(rows, map_slots<N>);
    }
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.set(i, branch_sum(in[0][i], state.bias[i], in[1][i], mask[i]));
    store_elems(y + offset, out);
  }
};

template <typename T, int N>
struct BranchBackward {
  static constexpr int num_inputs = 1;  // dy
  static constexpr bool has_sums = true;
  const T* inputs[num_inputs];
  T* dx;
  DeviceDropout dropout;
  TokenRows rows;

  struct State {
    std::int64_t channel;
    Token token;
  };
  __device__ __forceinline__ State begin(std::int64_t column, std::int64_t first_row) const {
    return {column, dropout.is_on ? token_of(rows, first_row) : Token{0, 0}};
  }
  __device__ __forceinline__ void apply(State& state, std::int64_t, std::int64_t offset, const Pack<T, N>* in,
                                        float* sums) const {
    float mask[N];
#pragma unroll
    for (int i = 0; i < N; ++i) mask[i] = 1;
    if (dropout.is_on) {
      dropout_mask(dropout, state.token, state.channel, mask);
      state.token.advance(rows, map_slots<N>);
    }
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gradient = in[0][i] * mask[i];
      out.set(i, gradient);
      sums[i] += gradient;
    }
    store_elems(dx + offset, out);
  }
};

}  // namespace

void bias_dropout_add_forward(ConstTensorView x, ConstTensorView bias, ConstTensorView residual, TensorView y,
                              Dropout dropout, TokenRows rows, Stream& stream) {
  dispatch_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x_ = data_of<T>(x);
    const T* b = data_of<T>(bias);
    const T* r = data_of<T>(residual);
    T* y_ = data_of<T>(y);
    const auto run = [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(BranchForward<T, N>{{x_, r}, b, y_, device_dropout(dropout), rows}, x.dim(0), x.dim(1), nullptr,
                     stream);
    };
    if (fits_packs<T>(x.dim(1), x_, b, r, y_)) {
      run(std::integral_constant<int, vector_elems<T>>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

void bias_dropout_add_backward(ConstTensorView dy, TensorView dx, TensorView bias_gradient, Dropout dropout,
                               TokenRows rows, Stream& stream) {
  dispatch_device(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dy_ = data_of<T>(dy);
    T* dx_ = data_of<T>(dx);
    float* db = data_of<float>(bias_gradient);
    const auto run = [&](auto n) {
      constexpr int N = decltype(n)::value;
      map_rows<T, N>(BranchBackward<T, N>{{dy_}, dx_, device_dropout(dropout), rows}, dy.dim(0), dy.dim(1), db, stream);
    };
    if (fits_packs<T>(dy.dim(1), dy_, dx_)) {
      run(std::integral_constant<int, vector_elems<T>>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace potato::cuda
