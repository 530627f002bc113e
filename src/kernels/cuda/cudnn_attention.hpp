// Attention by cuDNN's fused (flash) attention kernels, in 16-bit dtypes and without dropout; our own kernels do the
// rest.
//
// Tensors and shape letters as in potato/kernels/attention.hpp. The first call for a shape builds an execution plan:
// cuDNN compiles the kernel for it, about a second on the host. Later calls only enqueue. Nothing here synchronises the
// device.
#pragma once

#include <memory>
#include <string>

#include "potato/core/error.hpp"
#include "potato/kernels/attention.hpp"

namespace potato::cuda {

// Whether this build has cuDNN; a constant of the build, as with_cuda is.
inline constexpr bool with_cudnn = POTATO_WITH_CUDNN != 0;

// A failed call of cuDNN. `what()` holds what was being done to which descriptor, the status, and the library's own
// text.
class CudnnError : public Error {
 public:
  explicit CudnnError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

enum class AttentionPass : std::uint8_t { forward, backward };

// What cuDNN chose for a shape.
struct CudnnPlanInfo {
  std::string name;                  // engine, its knobs, and its notes
  std::int64_t workspace_bytes = 0;  // from stream.workspace(), all that a call needs
};

// A handle of the current CUDA device and the plans made with it. Safe to be used by several threads: calls lock it.
// The functions below use one of these for each device; a caller may hold its own.
class CudnnAttention {
 public:
  CudnnAttention();  // of the thread's current device; throws CudnnError
  ~CudnnAttention();
  CudnnAttention(CudnnAttention&&) noexcept;
  CudnnAttention& operator=(CudnnAttention&&) noexcept;

  // `deterministic` matters to backward alone; forward is always bitwise repeatable.
  CudnnPlanInfo plan_info(const AttentionShape& shape, DType dtype, AttentionPass pass, bool deterministic);

  void forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape, Stream& stream);
  void backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse, TensorView dqkv,
                const AttentionShape& shape, bool deterministic, Stream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Version of the library found at run time, major · 10000 + minor · 100 + patch.
std::int64_t cudnn_version();

// bf16 or fp16, D a multiple of 8 up to 128, T > 1, no dropout. Cheap: builds no plan.
bool cudnn_attention_supports(const AttentionShape& shape, DType dtype, const Dropout& dropout);

// Both need the device of `stream` to be the thread's current one, qkv and dqkv aligned to 16 bytes, and scratch memory
// from stream.workspace(), which throws Error where it is too small. Throw CudnnError where no engine takes the shape.
void cudnn_attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape,
                             Stream& stream);

// `deterministic`: bitwise repeatable. Without it the sums of dq over blocks of keys are added up in any order.
void cudnn_attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                              TensorView dqkv, const AttentionShape& shape, bool deterministic, Stream& stream);

// What backward asks of stream.workspace(); builds the plan for the current device. Forward asks for far less.
std::int64_t cudnn_attention_backward_workspace_bytes(const AttentionShape& shape, DType dtype, bool deterministic);

}  // namespace potato::cuda
