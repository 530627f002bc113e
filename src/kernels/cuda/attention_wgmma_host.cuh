// Host side of the warpgroup kernels. attention_wgmma_bf16.cu and attention_wgmma_f16.cu instantiate it.
#pragma once

#include <algorithm>

#include "attention_wgmma.hpp"
#include "attention_wgmma_backward.cuh"
#include "attention_wgmma_forward.cuh"

namespace potato::cuda {

inline auto tensor_map_encoder() {
  using Encoder = decltype(&cuTensorMapEncodeTiled);
  static const Encoder encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    PC_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    PC_CHECK(result == cudaDriverEntryPointSuccess && found != nullptr, "the driver has no tensor maps");
    return reinterpret_cast<Encoder>(found);
  }();
  return encoder;
}

// [B, T, heads, D] at `data`, in boxes of `box_rows` positions and 64 channels of one head; zeros outside.
template <typename T>
CUtensorMap tensor_map(const T* data, const AttentionShape& s, std::int64_t num_heads, int box_rows) {
  const auto row_bytes = static_cast<cuuint64_t>(num_heads * s.head_dim) * sizeof(T);
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(s.head_dim), static_cast<cuuint64_t>(num_heads),
                              static_cast<cuuint64_t>(s.sequence), static_cast<cuuint64_t>(s.batch)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(s.head_dim) * sizeof(T), row_bytes,
                                 row_bytes * static_cast<cuuint64_t>(s.sequence)};
  const cuuint32_t box[4] = {panel_columns, 1, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  constexpr CUtensorMapDataType type =
      std::is_same_v<T, __nv_bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const CUresult result = tensor_map_encoder()(&map, type, 4, const_cast<T*>(data), dims, strides, box, steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  PC_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", static_cast<int>(result));
  return map;
}

template <typename T>
WgmmaMaps make_maps(const AttentionArgs<T>& args, const AttentionShape& s) {
  const std::int64_t qkv_heads = s.num_heads + 2 * s.num_kv_heads;
  WgmmaMaps maps{};
  maps.block = tensor_map(args.qkv, s, qkv_heads, block_rows);
  maps.ring = tensor_map(args.qkv, s, qkv_heads, ring_rows);
  if (args.dy != nullptr) {
    maps.block_grads = tensor_map(args.dy, s, s.num_heads, block_rows);
    maps.ring_grads = tensor_map(args.dy, s, s.num_heads, ring_rows);
  }
  return maps;
}

inline int device_attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  PC_CUDA(cudaDeviceGetAttribute(&value, attribute, ordinal));
  return value;
}

// Thread blocks that stay: as many as run at once.
template <typename T>
void launch_staying(Stream& stream, std::size_t shared_bytes, int blocks_per_sm,
                    void (*kernel)(AttentionArgs<T>, WgmmaMaps), const AttentionArgs<T>& args, const WgmmaMaps& maps) {
  PC_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  const int num_sms = device_attribute(cudaDevAttrMultiProcessorCount, stream.device().ordinal);
  const std::int64_t blocks =
      std::min<std::int64_t>(args.heads_total * args.num_tiles, static_cast<std::int64_t>(num_sms) * blocks_per_sm);
  launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(wgmma_threads), shared_bytes, kernel, args, maps);
}

template <typename T>
bool wgmma_attention_fits(const AttentionArgs<T>& args, const Stream& stream) {
  if constexpr (!with_sm90a) return false;
  if (args.dropout.is_on || args.head_dim % 8 != 0 || args.head_dim > 128) return false;
  for (const void* memory : {static_cast<const void*>(args.qkv), static_cast<const void*>(args.y),
                             static_cast<const void*>(args.dy), static_cast<const void*>(args.dqkv)}) {
    if (!is_aligned(memory, 16)) return false;
  }
  const int ordinal = stream.device().ordinal;
  return device_attribute(cudaDevAttrComputeCapabilityMajor, ordinal) == 9 &&
         device_attribute(cudaDevAttrComputeCapabilityMinor, ordinal) == 0;
}

// Calls body(integral_constant<int, DP>).
template <typename Body>
void dispatch_panels(std::int64_t head_dim, const Body& body) {
  if (head_dim <= 64) {
    body(std::integral_constant<int, 64>{});
  } else {
    body(std::integral_constant<int, 128>{});
  }
}

template <typename T>
void wgmma_attention_forward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream) {
  const WgmmaMaps maps = make_maps(args, shape);
  dispatch_panels(shape.head_dim, [&](auto width) {
    constexpr int dp = decltype(width)::value;
    using Tile = WgmmaForwardTile<dp>;
    set_tiles(args, shape.num_heads, shape, block_rows);
    launch_staying(stream, Tile::shared_bytes, Tile::blocks_per_sm, wgmma_forward_kernel<T, dp>, args, maps);
  });
}

template <typename T>
void wgmma_attention_backward(AttentionArgs<T> args, const AttentionShape& shape, Stream& stream) {
  const WgmmaMaps maps = make_maps(args, shape);
  dispatch_panels(shape.head_dim, [&](auto width) {
    constexpr int dp = decltype(width)::value;
    using Tile = WgmmaBackwardTile<dp>;
    set_tiles(args, shape.num_kv_heads, shape, block_rows);
    launch_staying(stream, Tile::shared_bytes, 1, wgmma_key_gradient_kernel<T, dp>, args, maps);
    set_tiles(args, shape.num_heads, shape, block_rows);
    launch_staying(stream, Tile::shared_bytes, 1, wgmma_query_gradient_kernel<T, dp>, args, maps);
  });
}

}  // namespace potato::cuda
