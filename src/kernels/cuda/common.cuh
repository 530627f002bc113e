// What the CUDA kernels share: one way to launch, element types, 16-byte accesses, and sums over a warp or a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "potato/core/dtype.hpp"
#include "potato/core/philox.hpp"
#include "potato/device/cuda.hpp"
#include "potato/device/stream.hpp"
#include "potato/kernels/tokens.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato::cuda {

constexpr int warp_lanes = 32;

// Launches and checks; the stream has no default.
template <typename... Params, typename... Args>
void launch(Stream& stream, dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(Params...),
            Args&&... args) {
  kernel<<<grid, block, shared_bytes, cuda_stream(stream)>>>(std::forward<Args>(args)...);
  PC_CUDA(cudaGetLastError());
}

// Calls body(T{}) with the device's type of `dtype`: float, __nv_bfloat16 or __half; throws Error for another.
template <typename Body>
decltype(auto) dispatch_device(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    case DType::f16:
      return body(__half{});
    default:
      throw Error(cat("the CUDA back end has no kernels for ", dtype_name(dtype)));
  }
}

template <typename T>
inline constexpr DType device_dtype = DType::f32;
template <>
inline constexpr DType device_dtype<__nv_bfloat16> = DType::bf16;
template <>
inline constexpr DType device_dtype<__half> = DType::f16;

// Typed pointers of a view, checked.
template <typename T>
const T* data_of(const ConstTensorView& view) {
  PC_CHECK(view.dtype == device_dtype<T>, "dtype is ", dtype_name(view.dtype));
  return static_cast<const T*>(view.data);
}
template <typename T>
T* data_of(const TensorView& view) {
  PC_CHECK(view.dtype == device_dtype<T>, "dtype is ", dtype_name(view.dtype));
  return static_cast<T*>(view.data);
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16(x);
  } else {
    return __float2half(x);
  }
}

// Two values as stored 16-bit numbers, the first in the low half; one instruction.
template <typename S>
__device__ __forceinline__ unsigned pair_bits(float low, float high) {
  if constexpr (std::is_same_v<S, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}

// Elements of T that one 16-byte access moves.
template <typename T>
inline constexpr int vector_elems = 16 / static_cast<int>(sizeof(T));

// N elements moved by one access; N · sizeof(T) is 2, 4, 8 or 16.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T elems[N];

  __device__ __forceinline__ float operator[](int i) const { return to_float(elems[i]); }
  __device__ __forceinline__ void set(int i, float value) { elems[i] = from_float<T>(value); }
};

// The word that one access of so many bytes moves.
template <int bytes>
struct AccessWord;
template <>
struct AccessWord<2> {
  using Type = unsigned short;
};
template <>
struct AccessWord<4> {
  using Type = unsigned;
};
template <>
struct AccessWord<8> {
  using Type = uint2;
};
template <>
struct AccessWord<16> {
  using Type = uint4;
};

// Through a plain word: the compiler splits copies of arrays of 16-bit classes into 2-byte accesses.
template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* address) {
  using Word = typename AccessWord<sizeof(T) * N>::Type;
  const Word word = *reinterpret_cast<const Word*>(address);
  Pack<T, N> pack;
  __builtin_memcpy(&pack, &word, sizeof(word));
  return pack;
}
template <int N, typename T>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, N>& pack) {
  using Word = typename AccessWord<sizeof(T) * N>::Type;
  Word word;
  __builtin_memcpy(&word, &pack, sizeof(word));
  *reinterpret_cast<Word*>(address) = word;
}

inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The same value in all lanes, in a fixed order. All lanes of the warp take part.
template <typename T, typename Op = Sum>
__device__ __forceinline__ T warp_reduce(T value, Op op = {}) {
#pragma unroll
  for (int distance = warp_lanes / 2; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(0xFFFFFFFFU, value, distance));
  }
  return value;
}

// The same value in all threads, in a fixed order. `shared` holds one T a warp and may be used again after the next
// __syncthreads(). All threads of the block take part; blockDim.x is a multiple of 32.
template <typename T, typename Op = Sum>
__device__ __forceinline__ T block_reduce(T value, T* shared, Op op = {}) {
  value = warp_reduce(value, op);
  const int num_warps = static_cast<int>(blockDim.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  if (lane == 0) shared[threadIdx.x / warp_lanes] = value;
  __syncthreads();
  T total = shared[0];
  for (int i = 1; i < num_warps; ++i) total = op(total, shared[i]);
  __syncthreads();
  return total;
}

// Blocks of `block` threads that cover `count` items, for kernels that stride over the rest.
inline unsigned num_blocks(std::int64_t count, std::int64_t block, std::int64_t most = 132 * 16) {
  const std::int64_t blocks = (count + block - 1) / block;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks < most ? blocks : most));
}

// --- Philox on the device; see core/philox.hpp ---

__device__ __forceinline__ uint4 philox(uint4 counter, PhiloxKey key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53U, counter.x);
    const unsigned low0 = 0xD2511F53U * counter.x;
    const unsigned high1 = __umulhi(0xCD9E8D57U, counter.z);
    const unsigned low1 = 0xCD9E8D57U * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key.k0, low1, high0 ^ counter.w ^ key.k1, low0);
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  return counter;
}

// The four integers of channels 4 · (channel / 4) to + 3 of the dropout domain; channel % 4 picks the word.
__device__ __forceinline__ uint4 dropout_bits(PhiloxKey key, std::uint64_t sample, unsigned position,
                                              std::uint64_t channel) {
  return philox(make_uint4(static_cast<unsigned>(channel >> 2), position, static_cast<unsigned>(sample),
                           (static_cast<unsigned>(RandomDomain::dropout) << 24) | static_cast<unsigned>(sample >> 32)),
                key);
}

// Dropout as a kernel argument.
struct DeviceDropout {
  bool is_on;
  unsigned threshold;
  float scale;  // 1 / (1 − p)
  PhiloxKey key;
};

inline DeviceDropout device_dropout(const Dropout& dropout) {
  if (dropout.p == 0) return {false, 0, 1, {}};
  return {true, dropout_threshold(dropout.p), static_cast<float>(1 / (1 - dropout.p)), dropout.key};
}

}  // namespace potato::cuda
