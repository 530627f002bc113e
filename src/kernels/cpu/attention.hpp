// CPU twins of kernels/attention.hpp; see there. T is float or double.
#pragma once

#include <cstdint>

#include "potato/kernels/attention.hpp"

namespace potato::cpu {

// What a task needs beyond the tensors; trivially copyable.
struct AttentionTask {
  AttentionShape shape;
  Dropout dropout;
  std::uint64_t first_sample = 0;
};

template <typename T>
void attention_forward(const AttentionTask& task, const T* qkv, T* y, T* lse);

template <typename T>
void attention_backward(const AttentionTask& task, const T* dy, const T* qkv, const T* y, const T* lse, T* dqkv,
                        T* row_sums);

}  // namespace potato::cpu
