// cuBLASLt is column-major: a row-major C = op(A) · op(B) is its D = op(B) · op(A), [N, M], with the same memory.
//
// The algorithm is the first that cuBLASLt's heuristic gives for a shape, dtype and alignment: the same in every run of
// one library and GPU. A plan is kept for each such key.
#include "gemm.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "potato/core/allocations.hpp"
#include "potato/device/cuda.hpp"

namespace potato::cuda {

namespace {

class CublasError : public Error {
 public:
  explicit CublasError(const std::string& message, std::source_location place = std::source_location::current())
      : Error(message, place) {}
};

void check_cublas(cublasStatus_t status, const char* expression,
                  std::source_location place = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw CublasError(cat(expression, ": ", cublasLtGetStatusName(status), ", ", cublasLtGetStatusString(status)), place);
}

#define PC_CUBLAS(call) check_cublas((call), #call)

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw Error(cat("the CUDA back end multiplies no ", dtype_name(dtype)));
  }
}

struct DescDelete {
  void operator()(cublasLtMatmulDescOpaque_t* d) const { cublasLtMatmulDescDestroy(d); }
};
struct LayoutDelete {
  void operator()(cublasLtMatrixLayoutOpaque_t* l) const { cublasLtMatrixLayoutDestroy(l); }
};
struct PreferenceDelete {
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const { cublasLtMatmulPreferenceDestroy(p); }
};
using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DescDelete>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDelete>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, PreferenceDelete>;

Layout make_layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  PC_CUBLAS(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<std::uint64_t>(rows),
                                       static_cast<std::uint64_t>(columns), rows));
  return Layout(layout);
}

// Everything that a plan depends on. `a` and `b` are row-major operands as in kernels/gemm.hpp.
struct Problem {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  DType in, out;
  bool accumulates;  // beta is not 0
  cublasLtEpilogue_t epilogue;
  std::uint32_t alignment_bytes;

  auto key() const {
    return std::tuple(m, n, k, transpose_a, transpose_b, in, out, accumulates, static_cast<int>(epilogue),
                      alignment_bytes);
  }
  bool operator<(const Problem& other) const { return key() < other.key(); }
};

struct Plan {
  Desc desc;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algo{};
};

// The largest power of two, up to 256, that divides all addresses.
std::uint32_t common_alignment(std::initializer_list<const void*> addresses) {
  std::uintptr_t bits = 256;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

class Multiplier {
 public:
  explicit Multiplier(Stream& stream) : stream_(stream) { PC_CUBLAS(cublasLtCreate(&handle_)); }
  ~Multiplier() { cublasLtDestroy(handle_); }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

  struct Operands {
    const void* a;
    const void* b;
    void* c;
    const void* bias = nullptr;
    void* aux = nullptr;  // [M, N] of the output's dtype: the pre-activation
  };

  void run(Problem problem, const Operands& operands, float alpha, float beta) {
    problem.alignment_bytes = common_alignment({operands.a, operands.b, operands.c, operands.aux});
    auto place = plans_.find(problem);
    if (place == plans_.end()) {
      const LibraryScope library;
      place = plans_.emplace(problem, make_plan(problem)).first;
    }
    const Plan& plan = place->second;
    if (operands.bias != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (operands.aux != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
    const LibraryScope library;
    PC_CUBLAS(cublasLtMatmul(handle_, plan.desc.get(), &alpha, operands.b, plan.b.get(), operands.a, plan.a.get(),
                             &beta, operands.c, plan.c.get(), operands.c, plan.c.get(), &plan.algo,
                             stream_.workspace(workspace_bytes), workspace_bytes, cuda_stream(stream_)));
  }

 private:
  static constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20;  // NVIDIA's advice for Hopper

  template <typename Value>
  static void set(const Desc& desc, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    PC_CUBLAS(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)));
  }

  Plan make_plan(const Problem& p) const {
    const bool is_tf32 = p.in == DType::f32 && stream_.allows_tf32();
    cublasLtMatmulDesc_t desc = nullptr;
    PC_CUBLAS(cublasLtMatmulDescCreate(&desc, is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Plan plan;
    plan.desc.reset(desc);
    const cublasOperation_t op_a = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, op_b);
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, op_a);
    set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
      const cudaDataType_t bias_type = data_type(p.out);
      set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
      const std::int64_t aux_ld = p.n;
      set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
      const void* placeholder = nullptr;
      set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, placeholder);
    }
    plan.b = p.transpose_b ? make_layout(p.in, p.k, p.n) : make_layout(p.in, p.n, p.k);
    plan.a = p.transpose_a ? make_layout(p.in, p.m, p.k) : make_layout(p.in, p.k, p.m);
    plan.c = make_layout(p.out, p.n, p.m);

    cublasLtMatmulPreference_t raw = nullptr;
    PC_CUBLAS(cublasLtMatmulPreferenceCreate(&raw));
    const Preference preference(raw);
    const auto limit = static_cast<std::size_t>(workspace_bytes);
    PC_CUBLAS(
        cublasLtMatmulPreferenceSetAttribute(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof(limit)));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      PC_CUBLAS(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &p.alignment_bytes, sizeof(p.alignment_bytes)));
    }
    cublasLtMatmulHeuristicResult_t found{};
    int num_found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, desc, plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(), raw, 1, &found, &num_found);
    if (status != CUBLAS_STATUS_SUCCESS || num_found == 0) {
      throw CublasError(cat("cuBLASLt has no algorithm for [", p.m, ", ", p.k, "] x [", p.k, ", ", p.n, "], ",
                            dtype_name(p.in), " into ", dtype_name(p.out), ", epilogue ", static_cast<int>(p.epilogue),
                            ": ", cublasLtGetStatusString(status)));
    }
    plan.algo = found.algo;
    return plan;
  }

  Stream& stream_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Problem, Plan> plans_;
};

}  // namespace

void gemm(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b, TensorView c, double alpha,
          double beta, Stream& stream) {
  const std::int64_t k = a.dim(transpose_a ? 0 : 1);
  const Problem problem{
      c.dim(0), c.dim(1), k, transpose_a, transpose_b, a.dtype, c.dtype, beta != 0, CUBLASLT_EPILOGUE_DEFAULT, 0};
  stream.attachment<Multiplier>().run(problem, {a.data, b.data, c.data}, static_cast<float>(alpha),
                                      static_cast<float>(beta));
}

void linear_bias(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView y, Stream& stream) {
  const Problem problem{y.dim(0), y.dim(1), x.dim(1), false, true, x.dtype, y.dtype, false, CUBLASLT_EPILOGUE_BIAS, 0};
  stream.attachment<Multiplier>().run(problem, {x.data, weight.data, y.data, bias.data}, 1, 0);
}

void linear_bias_gelu(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView pre, TensorView y,
                      Stream& stream) {
  const Problem problem{
      y.dim(0), y.dim(1), x.dim(1), false, true, x.dtype, y.dtype, false, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0};
  stream.attachment<Multiplier>().run(problem, {x.data, weight.data, y.data, bias.data, pre.data}, 1, 0);
}

}  // namespace potato::cuda
