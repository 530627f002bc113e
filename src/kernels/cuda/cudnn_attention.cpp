// cuDNN knows fused attention as a pattern in a graph of small operations: this file writes that graph out, operation
// by operation, and asks the library for an engine that runs all of it in one go. Shapes, strides, data types and the
// order of operations are part of the pattern; another graph with the same mathematics finds no engine. The pattern is
// the one that NVIDIA's cudnn-frontend lowers its SDPA nodes to; see also "Fused attention" in the cuDNN Graph API's
// documentation (docs.nvidia.com/deeplearning/cudnn, "Graph Patterns").
#include "cudnn_attention.hpp"

#include <cudnn_backend.h>

#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "potato/core/allocations.hpp"
#include "potato/core/narrow.hpp"
#include "potato/device/cuda.hpp"

namespace potato::cuda {

namespace {

// --- checked calls and descriptors ---

std::string status_text(cudnnStatus_t status) {
  std::array<char, 2048> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  return cat(cudnnGetErrorString(status), detail[0] == '\0' ? "" : ", ", detail.data());
}

void check_cudnn(cudnnStatus_t status, const char* expression, std::string_view subject,
                 std::source_location place = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  throw CudnnError(cat("cuDNN ", cudnnGetVersion(), ", ", subject, ": ", expression, ": ", status_text(status)), place);
}

}  // namespace

// `subject` says what the call works on.
#define PC_CUDNN(call, subject) check_cudnn((call), #call, (subject))

namespace {

// The attribute type of a C++ type, where there is but one.
template <typename T>
inline constexpr cudnnBackendAttributeType_t attribute_type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<std::int64_t> = CUDNN_TYPE_INT64;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<bool> = CUDNN_TYPE_BOOLEAN;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<float> = CUDNN_TYPE_FLOAT;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<cudnnReduceTensorOp_t> = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
template <>
inline constexpr cudnnBackendAttributeType_t attribute_type<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;

// Owns a descriptor of cuDNN's back-end interface; `name` is for error texts.
class Descriptor {
 public:
  Descriptor(cudnnBackendDescriptorType_t type, std::string name) : name_(std::move(name)) {
    PC_CUDNN(cudnnBackendCreateDescriptor(type, &raw_), name_);
  }
  ~Descriptor() {
    if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
  }
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)), name_(std::move(other.name_)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t attribute, const T& value) {
    return set(attribute, attribute_type<T>, 1, &value);
  }
  template <typename T, std::size_t N>
  Descriptor& set(cudnnBackendAttributeName_t attribute, const std::array<T, N>& values) {
    return set(attribute, attribute_type<T>, N, values.data());
  }
  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t attribute, const std::vector<T>& values) {
    return set(attribute, attribute_type<T>, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, std::int64_t count,
                  const void* values) {
    const cudnnStatus_t status = cudnnBackendSetAttribute(raw_, attribute, type, count, values);
    if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
      check_cudnn(status, "cudnnBackendSetAttribute", cat(name_, ", attribute ", static_cast<int>(attribute)));
    return *this;
  }

  // Returns how many there are, which may be more or fewer than asked for.
  std::int64_t get(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, std::int64_t count,
                   void* values) const {
    std::int64_t found = 0;
    const cudnnStatus_t status = cudnnBackendGetAttribute(raw_, attribute, type, count, &found, values);
    if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
      check_cudnn(status, "cudnnBackendGetAttribute", cat(name_, ", attribute ", static_cast<int>(attribute)));
    return found;
  }

  void finalize() { PC_CUDNN(cudnnBackendFinalize(raw_), name_); }
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(raw_); }

  cudnnBackendDescriptor_t raw() const { return raw_; }
  const std::string& name() const { return name_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
  std::string name_;
};

// --- graphs ---

// How a plan finds the caller's tensors. Values on the way get numbers from first_interim up.
enum class Uid : std::int64_t {
  q = 1,
  k,
  v,
  y,
  lse,
  dy,
  dq,
  dk,
  dv,
  dy_y_sums,  // scratch [B, H, T]
  dq_sums,    // scratch [B, H, T, D]
  scale,
  minus_infinity,
  one,
  first_interim = 100,
};

using Dims = std::array<std::int64_t, 4>;

struct Layout {
  Dims dims;
  Dims strides;  // in elements
};

Layout row_major(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
}
Layout transposed(const Layout& of) {
  return {{of.dims[0], of.dims[1], of.dims[3], of.dims[2]},
          {of.strides[0], of.strides[1], of.strides[3], of.strides[2]}};
}

// Collects tensors and operations. Tensors are handed around as raw handles, owned here.
class Graph {
 public:
  using Tensor = cudnnBackendDescriptor_t;

  // In device memory.
  Tensor memory(Uid uid, const char* name, cudnnDataType_t dtype, const Layout& layout) {
    return add_tensor(static_cast<std::int64_t>(uid), name, dtype, layout, /*is_virtual=*/false, /*by_value=*/false);
  }
  // A value on the way, which an engine need not store.
  Tensor interim(const char* name, cudnnDataType_t dtype, const Layout& layout) {
    return add_tensor(next_interim_++, name, dtype, layout, /*is_virtual=*/true, /*by_value=*/false);
  }
  // An fp32 number in host memory, read when the plan is executed.
  Tensor scalar(Uid uid, const char* name) {
    return add_tensor(static_cast<std::int64_t>(uid), name, CUDNN_DATA_FLOAT, row_major(1, 1, 1, 1),
                      /*is_virtual=*/false, /*by_value=*/true);
  }

  // c = a · b over the last two dims; the second dim of b may be a divisor of a's (grouped queries).
  void matmul(const char* name, Tensor a, Tensor b, Tensor c) {
    Descriptor& math = add_part(CUDNN_BACKEND_MATMUL_DESCRIPTOR, name);
    math.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
    add_operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, name)
        .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c)
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, math.raw())
        .finalize();
  }

  struct Operands {
    Tensor x = nullptr;
    Tensor b = nullptr;  // null: the mode takes one operand
    Tensor t = nullptr;  // predicate of a select
  };
  void pointwise(const char* name, cudnnPointwiseMode_t mode, const Operands& in, Tensor y,
                 cudnnDataType_t math_dtype = CUDNN_DATA_FLOAT, std::optional<std::int64_t> axis = {}) {
    Descriptor& math = add_part(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, name);
    math.set(CUDNN_ATTR_POINTWISE_MODE, mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, math_dtype);
    if (axis) math.set(CUDNN_ATTR_POINTWISE_AXIS, *axis);
    math.finalize();
    Descriptor& operation = add_operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, name);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, math.raw())
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, in.x)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1.0F)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1.0F);
    if (in.b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, in.b);
    if (in.t != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, in.t);
    operation.finalize();
  }
  // The same, into a new fp32 interim value.
  Tensor pointwise_to(const char* name, cudnnPointwiseMode_t mode, const Operands& in, const Layout& layout) {
    Tensor y = interim(name, CUDNN_DATA_FLOAT, layout);
    pointwise(name, mode, in, y);
    return y;
  }

  // Over the dims in which y has fewer elements than x.
  void reduce(const char* name, cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
    Descriptor& math = add_part(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, name);
    math.set(CUDNN_ATTR_REDUCTION_OPERATOR, op).set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
    add_operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, name)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, math.raw())
        .finalize();
  }

  // The same elements under other dims and strides; here always a transposition.
  void reshape(const char* name, Tensor x, Tensor y) {
    add_operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, name)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)
        .finalize();
  }

  const std::vector<cudnnBackendDescriptor_t>& operations() const { return operations_; }

 private:
  Tensor add_tensor(std::int64_t uid, const char* name, cudnnDataType_t dtype, const Layout& layout, bool is_virtual,
                    bool by_value) {
    constexpr std::int64_t alignment_bytes = 16;
    Descriptor& tensor = parts_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR, cat("tensor ", name, " (uid ", uid, ")"));
    tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, dtype)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, layout.dims)
        .set(CUDNN_ATTR_TENSOR_STRIDES, layout.strides)
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment_bytes);
    if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
    if (by_value) tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
    tensor.finalize();
    return tensor.raw();
  }
  Descriptor& add_part(cudnnBackendDescriptorType_t type, const char* name) {
    return parts_.emplace_back(type, cat("mathematics of operation ", name));
  }
  Descriptor& add_operation(cudnnBackendDescriptorType_t type, const char* name) {
    Descriptor& operation =
        parts_.emplace_back(type, cat("operation ", name, " (number ", operations_.size(), " of the graph)"));
    operations_.push_back(operation.raw());
    return operation;
  }

  std::deque<Descriptor> parts_;  // a deque: references stay valid
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::int64_t next_interim_ = static_cast<std::int64_t>(Uid::first_interim);
};

cudnnDataType_t cudnn_dtype(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::f16:
      return CUDNN_DATA_HALF;
    default:
      throw Error(cat("attention by cuDNN has no kernels for ", dtype_name(dtype)));
  }
}

// The tensors' layouts within the caller's memory.
struct Layouts {
  explicit Layouts(const AttentionShape& s) {
    const std::int64_t b = s.batch, t = s.sequence, h = s.num_heads, k = s.num_kv_heads, d = s.head_dim;
    const std::int64_t packed = (h + 2 * k) * d;  // elements of a row of qkv
    query = {{b, h, t, d}, {t * packed, d, packed, 1}};
    key = {{b, k, t, d}, {t * packed, d, packed, 1}};
    output = {{b, h, t, d}, {t * h * d, d, h * d, 1}};
    scores = row_major(b, h, t, t);
    rows = row_major(b, h, t, 1);
    heads = row_major(b, h, t, d);
  }
  Layout query;   // q and dq [B, H, T, D]
  Layout key;     // k, v, dk and dv [B, K, T, D]
  Layout output;  // y and dy [B, H, T, D]
  Layout scores;  // [B, H, T, T], never stored
  Layout rows;    // [B, H, T, 1]
  Layout heads;   // [B, H, T, D], dense
};

// Scores of keys behind the query become −∞. cuDNN recognises a causal mask by exactly these operations.
Graph::Tensor add_causal_mask(Graph& graph, Graph::Tensor scores, const Layout& layout) {
  const Graph::Tensor row = graph.interim("row index", CUDNN_DATA_INT32, layout);
  graph.pointwise("row index", CUDNN_POINTWISE_GEN_INDEX, {scores}, row, CUDNN_DATA_FLOAT, 2);
  const Graph::Tensor column = graph.interim("column index", CUDNN_DATA_INT32, layout);
  graph.pointwise("column index", CUDNN_POINTWISE_GEN_INDEX, {scores}, column, CUDNN_DATA_FLOAT, 3);
  const Graph::Tensor keep = graph.interim("row >= column", CUDNN_DATA_BOOLEAN, layout);
  graph.pointwise("row >= column", CUDNN_POINTWISE_CMP_GE, {row, column}, keep, CUDNN_DATA_BOOLEAN);
  const Graph::Tensor infinity = graph.scalar(Uid::minus_infinity, "minus infinity");
  return graph.pointwise_to("causal mask", CUDNN_POINTWISE_BINARY_SELECT, {scores, infinity, keep}, layout);
}

// S = scale · Q Kᵀ, masked; m = max S, e = exp(S − m), l = Σ e; lse = m + log l; Y = (e / l) V.
void build_forward(Graph& graph, const AttentionShape& shape, cudnnDataType_t dtype) {
  const Layouts at(shape);
  const Graph::Tensor q = graph.memory(Uid::q, "q", dtype, at.query);
  const Graph::Tensor k = graph.memory(Uid::k, "k transposed", dtype, transposed(at.key));
  const Graph::Tensor v = graph.memory(Uid::v, "v", dtype, at.key);
  const Graph::Tensor y = graph.memory(Uid::y, "y", dtype, at.output);
  const Graph::Tensor lse = graph.memory(Uid::lse, "lse", CUDNN_DATA_FLOAT, at.rows);

  const Graph::Tensor products = graph.interim("q k", CUDNN_DATA_FLOAT, at.scores);
  graph.matmul("q k", q, k, products);
  Graph::Tensor scores =
      graph.pointwise_to("scale", CUDNN_POINTWISE_MUL, {products, graph.scalar(Uid::scale, "scale")}, at.scores);
  if (shape.causal) scores = add_causal_mask(graph, scores, at.scores);

  const Graph::Tensor row_max = graph.interim("row max", CUDNN_DATA_FLOAT, at.rows);
  graph.reduce("row max", CUDNN_REDUCE_TENSOR_MAX, scores, row_max);
  const Graph::Tensor shifted = graph.pointwise_to("scores - max", CUDNN_POINTWISE_SUB, {scores, row_max}, at.scores);
  const Graph::Tensor exponentials = graph.pointwise_to("exp", CUDNN_POINTWISE_EXP, {shifted}, at.scores);
  const Graph::Tensor row_sum = graph.interim("row sum", CUDNN_DATA_FLOAT, at.rows);
  graph.reduce("row sum", CUDNN_REDUCE_TENSOR_ADD, exponentials, row_sum);
  const Graph::Tensor log_sum = graph.pointwise_to("log", CUDNN_POINTWISE_LOG, {row_sum}, at.rows);
  graph.pointwise("lse", CUDNN_POINTWISE_ADD, {row_max, log_sum}, lse);
  // The second product takes its left side in the dtype of its right one.
  const Graph::Tensor probabilities = graph.interim("probabilities", dtype, at.scores);
  graph.pointwise("probabilities", CUDNN_POINTWISE_DIV, {exponentials, row_sum}, probabilities);

  graph.matmul("p v", probabilities, v, y);
}

// dk or dv [B, K, T, D] = leftᵀ · right, where left [B, H, T, T] and right [B, H, T, D]: per query head, then summed
// over the heads that share a key.
void add_key_gradient(Graph& graph, const char* name, Graph::Tensor left, Graph::Tensor right, Graph::Tensor out,
                      const AttentionShape& shape, cudnnDataType_t dtype, const Layouts& at) {
  const std::string transposed_name = cat(name, ": transposed"), sum_name = cat(name, ": sum over heads");
  const Graph::Tensor left_transposed = graph.interim(transposed_name.c_str(), dtype, transposed(at.scores));
  graph.reshape(transposed_name.c_str(), left, left_transposed);
  if (shape.num_heads == shape.num_kv_heads) {
    graph.matmul(name, left_transposed, right, out);
    return;
  }
  const Graph::Tensor of_each_head = graph.interim(name, dtype, at.heads);
  graph.matmul(name, left_transposed, right, of_each_head);
  graph.reduce(sum_name.c_str(), CUDNN_REDUCE_TENSOR_ADD, of_each_head, out);
}

// P = exp(scale · Q Kᵀ − lse), masked; dV = Pᵀ dY; dS = scale · P ∘ (dY Vᵀ − rowsum(dY ∘ Y)); dK = dSᵀ Q; dQ = dS K.
// Engines walk over blocks of keys. With a place for fp32 sums of dQ in the graph these are added up by atomics; where
// dQ is the product's own result, an engine with a fixed order is meant.
void build_backward(Graph& graph, const AttentionShape& shape, cudnnDataType_t dtype, bool deterministic) {
  const Layouts at(shape);
  const Graph::Tensor q = graph.memory(Uid::q, "q", dtype, at.query);
  const Graph::Tensor k = graph.memory(Uid::k, "k transposed", dtype, transposed(at.key));
  const Graph::Tensor v = graph.memory(Uid::v, "v transposed", dtype, transposed(at.key));
  const Graph::Tensor y = graph.memory(Uid::y, "y", dtype, at.output);
  const Graph::Tensor dy = graph.memory(Uid::dy, "dy", dtype, at.output);
  const Graph::Tensor lse = graph.memory(Uid::lse, "lse", CUDNN_DATA_FLOAT, at.rows);
  const Graph::Tensor dq = graph.memory(Uid::dq, "dq", dtype, at.query);
  const Graph::Tensor dk = graph.memory(Uid::dk, "dk", dtype, at.key);
  const Graph::Tensor dv = graph.memory(Uid::dv, "dv", dtype, at.key);
  const Graph::Tensor scale = graph.scalar(Uid::scale, "scale");

  // The factor 1 stands where dropout would have its own; the pattern wants one.
  const Graph::Tensor dy_y = graph.pointwise_to("dy y", CUDNN_POINTWISE_MUL, {dy, y}, at.heads);
  const Graph::Tensor raw_sums = graph.interim("sum dy y", CUDNN_DATA_FLOAT, at.rows);
  graph.reduce("sum dy y", CUDNN_REDUCE_TENSOR_ADD, dy_y, raw_sums);
  const Graph::Tensor sums = graph.memory(Uid::dy_y_sums, "stored sum dy y", CUDNN_DATA_FLOAT, at.rows);
  graph.pointwise("stored sum dy y", CUDNN_POINTWISE_MUL, {raw_sums, graph.scalar(Uid::one, "one")}, sums);

  const Graph::Tensor products = graph.interim("q k", CUDNN_DATA_FLOAT, at.scores);
  graph.matmul("q k", q, k, products);
  const Graph::Tensor scores = graph.pointwise_to("scale", CUDNN_POINTWISE_MUL, {products, scale}, at.scores);
  Graph::Tensor shifted = graph.pointwise_to("scores - lse", CUDNN_POINTWISE_SUB, {scores, lse}, at.scores);
  if (shape.causal) shifted = add_causal_mask(graph, shifted, at.scores);
  const Graph::Tensor probabilities = graph.pointwise_to("exp", CUDNN_POINTWISE_EXP, {shifted}, at.scores);
  add_key_gradient(graph, "dv", probabilities, dy, dv, shape, dtype, at);

  const Graph::Tensor dp = graph.interim("dy v", CUDNN_DATA_FLOAT, at.scores);
  graph.matmul("dy v", dy, v, dp);
  const Graph::Tensor centred = graph.pointwise_to("dp - sums", CUDNN_POINTWISE_SUB, {dp, sums}, at.scores);
  const Graph::Tensor weighted =
      graph.pointwise_to("times p", CUDNN_POINTWISE_MUL, {centred, probabilities}, at.scores);
  const Graph::Tensor ds = graph.pointwise_to("ds", CUDNN_POINTWISE_MUL, {weighted, scale}, at.scores);
  add_key_gradient(graph, "dk", ds, q, dk, shape, dtype, at);

  const Graph::Tensor k_rows = graph.interim("k", dtype, at.key);
  graph.reshape("k", k, k_rows);
  if (deterministic) {
    graph.matmul("dq", ds, k_rows, dq);
  } else {
    const Graph::Tensor dq_sums = graph.memory(Uid::dq_sums, "fp32 dq", CUDNN_DATA_FLOAT, at.heads);
    graph.matmul("fp32 dq", ds, k_rows, dq_sums);
    graph.pointwise("dq", CUDNN_POINTWISE_IDENTITY, {dq_sums}, dq);
  }
}

// --- plans ---

constexpr std::int64_t workspace_alignment = 256;
std::int64_t aligned(std::int64_t num_bytes) {
  return (num_bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
}

struct Plan {
  Descriptor descriptor;
  std::string name;
  std::int64_t engine_bytes = 0;  // workspace of cuDNN's own; our scratch tensors lie behind it
  std::int64_t sums_bytes = 0;    // rowsum(dy ∘ y)
  std::int64_t dq_bytes = 0;      // fp32 dq

  std::int64_t workspace_bytes() const { return aligned(engine_bytes) + aligned(sums_bytes) + aligned(dq_bytes); }
};

// "engine 5, knobs 13=2 40=3, notes 0 4": numbers as in cudnn_graph.h, note 4 being "nondeterministic".
std::string describe(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine of a configuration");
  cudnnBackendDescriptor_t raw_engine = engine.raw();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw_engine);
  std::int64_t index = -1;
  engine.get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);

  std::deque<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> raw_choices;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    raw_choices.push_back(choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob choice").raw());
  }
  const std::int64_t num_choices = config.get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              CUDNN_KNOB_TYPE_COUNTS, raw_choices.data());
  std::string text = cat("engine ", index, num_choices > 0 ? ", knobs" : "");
  for (std::int64_t i = 0; i < num_choices && i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    const Descriptor& choice = choices[static_cast<std::size_t>(i)];
    cudnnBackendKnobType_t type{};
    std::int64_t value = 0;
    choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
    text += cat(" ", static_cast<int>(type), "=", value);
  }
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const std::int64_t num_notes = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes.data());
  text += num_notes > 0 ? ", notes" : "";
  for (std::int64_t i = 0; i < num_notes && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; ++i) {
    text += cat(" ", static_cast<int>(notes[static_cast<std::size_t>(i)]));
  }
  return text;
}

// Configurations that the heuristics offer for the graph, best first. Empty, with the reason in `problems`, where the
// mode has none.
std::vector<Descriptor> find_configs(const Descriptor& graph, cudnnBackendHeurMode_t mode, std::string& problems) {
  const std::string name = cat("heuristics, mode ", static_cast<int>(mode));
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, name);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.raw()).set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  std::vector<Descriptor> configs;
  if (const cudnnStatus_t status = heuristics.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
    problems += cat("\n  ", name, ": ", status_text(status));
    return configs;
  }
  const std::int64_t offered = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < offered; ++i) {
    raw.push_back(configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, cat(name, ", configuration ", i)).raw());
  }
  const std::int64_t found =
      offered == 0 ? 0
                   : heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, raw.data());
  while (static_cast<std::int64_t>(configs.size()) > found) configs.pop_back();
  if (found == 0) problems += cat("\n  ", name, ": no engine, ", status_text(CUDNN_STATUS_SUCCESS));
  return configs;
}

// The first configuration whose plan the library accepts: a fixed choice, so every run computes the same.
Plan make_plan(cudnnHandle_t handle, const Graph& operations, const std::string& what) {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, cat("operation graph of ", what));
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations.operations()).set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  graph.finalize();
  std::string problems;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& config : find_configs(graph, mode, problems)) {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, cat("plan of ", what));
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.raw());
      if (const cudnnStatus_t status = plan.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
        problems += cat("\n  ", config.name(), ", ", describe(config), ": ", status_text(status));
        continue;
      }
      Plan made{std::move(plan), describe(config)};
      made.descriptor.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &made.engine_bytes);
      return made;
    }
  }
  throw CudnnError(cat("cuDNN ", cudnnGetVersion(), " has no engine for ", what, problems));
}

// What a plan depends on. The scale is no part of it: it is given at each execution.
using PlanKey =
    std::tuple<AttentionPass, DType, bool, bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

Plan make_attention_plan(cudnnHandle_t handle, const AttentionShape& s, DType dtype, AttentionPass pass,
                         bool deterministic) {
  const bool forward = pass == AttentionPass::forward;
  const std::string what =
      cat("attention ", forward ? "forward" : (deterministic ? "backward (deterministic)" : "backward"), " of ",
          dtype_name(dtype), ", B ", s.batch, ", T ", s.sequence, ", H ", s.num_heads, ", K ", s.num_kv_heads, ", D ",
          s.head_dim, s.causal ? ", causal" : ", full");
  Graph graph;
  if (forward) {
    build_forward(graph, s, cudnn_dtype(dtype));
  } else {
    build_backward(graph, s, cudnn_dtype(dtype), deterministic);
  }
  Plan plan = make_plan(handle, graph, what);
  if (!forward) {
    const std::int64_t num_rows = s.batch * s.num_heads * s.sequence;
    plan.sums_bytes = num_rows * dtype_bytes(DType::f32);
    if (!deterministic) plan.dq_bytes = num_rows * s.head_dim * dtype_bytes(DType::f32);
  }
  return plan;
}

// Addresses for one execution of a plan.
class VariantPack {
 public:
  VariantPack& add(Uid uid, const void* address) {
    uids_.push_back(static_cast<std::int64_t>(uid));
    addresses_.push_back(const_cast<void*>(address));  // NOLINT(cppcoreguidelines-pro-type-const-cast): inputs too
    return *this;
  }

  void execute(cudnnHandle_t handle, const Plan& plan, void* workspace) {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "addresses for an execution");
    const auto count = static_cast<std::int64_t>(uids_.size());
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids_)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses_.data())
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.finalize();
    PC_CUDNN(cudnnBackendExecute(handle, plan.descriptor.raw(), pack.raw()), plan.descriptor.name());
  }

 private:
  std::vector<std::int64_t> uids_;
  std::vector<void*> addresses_;
};

// Where q, k and v (or their gradients) begin in a packed row.
struct PackedAddresses {
  template <typename View>
  PackedAddresses(const View& packed, const AttentionShape& s) {
    PC_CHECK(reinterpret_cast<std::uintptr_t>(packed.data) % 16 == 0, "qkv and dqkv must be aligned to 16 bytes");
    const std::int64_t head_bytes = s.head_dim * dtype_bytes(packed.dtype);
    q = static_cast<const char*>(packed.data);
    k = q + s.num_heads * head_bytes;
    v = k + s.num_kv_heads * head_bytes;
  }
  const char* q;
  const char* k;
  const char* v;
};

// Values by host address: read by cudnnBackendExecute before it returns.
struct Scalars {
  float scale;
  float minus_infinity = -std::numeric_limits<float>::infinity();
  float one = 1;
};

}  // namespace

struct CudnnAttention::State {
  State() { PC_CUDNN(cudnnCreate(&handle), "a handle"); }
  // A failure can only be logged, and says nothing that the program could act on.
  ~State() {
    plans.clear();
    cudnnDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const Plan& plan(const AttentionShape& s, DType dtype, AttentionPass pass, bool deterministic) {
    deterministic = deterministic && pass == AttentionPass::backward;
    const PlanKey key{pass,       dtype,       deterministic,  s.causal,  s.batch,
                      s.sequence, s.num_heads, s.num_kv_heads, s.head_dim};
    auto found = plans.find(key);
    if (found == plans.end()) {
      found = plans.emplace(key, make_attention_plan(handle, s, dtype, pass, deterministic)).first;
    }
    return found->second;
  }

  std::mutex mutex;  // a handle serves one call at a time
  cudnnHandle_t handle = nullptr;
  std::map<PlanKey, Plan> plans;
};

CudnnAttention::CudnnAttention() : state_(std::make_unique<State>()) {}
CudnnAttention::~CudnnAttention() = default;
CudnnAttention::CudnnAttention(CudnnAttention&&) noexcept = default;
CudnnAttention& CudnnAttention::operator=(CudnnAttention&&) noexcept = default;

CudnnPlanInfo CudnnAttention::plan_info(const AttentionShape& shape, DType dtype, AttentionPass pass,
                                        bool deterministic) {
  const std::lock_guard lock(state_->mutex);
  const Plan& plan = state_->plan(shape, dtype, pass, deterministic);
  return {plan.name, plan.workspace_bytes()};
}

void CudnnAttention::forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape,
                             Stream& stream) {
  if (y.num_elems() == 0) return;
  PC_CHECK(y.dtype == qkv.dtype && lse.dtype == DType::f32);
  const LibraryScope library;  // descriptors are made for each call
  const std::lock_guard lock(state_->mutex);
  const Plan& plan = state_->plan(shape, qkv.dtype, AttentionPass::forward, false);
  const PackedAddresses in(qkv, shape);
  const Scalars scalars{static_cast<float>(shape.scale)};
  VariantPack pack;
  pack.add(Uid::q, in.q).add(Uid::k, in.k).add(Uid::v, in.v).add(Uid::y, y.data).add(Uid::lse, lse.data);
  pack.add(Uid::scale, &scalars.scale);
  if (shape.causal) pack.add(Uid::minus_infinity, &scalars.minus_infinity);
  void* workspace = plan.workspace_bytes() > 0 ? stream.workspace(plan.workspace_bytes()) : nullptr;
  PC_CUDNN(cudnnSetStream(state_->handle, cuda_stream(stream)), "a handle");
  pack.execute(state_->handle, plan, workspace);
}

void CudnnAttention::backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                              TensorView dqkv, const AttentionShape& shape, bool deterministic, Stream& stream) {
  if (dy.num_elems() == 0) return;
  PC_CHECK(y.dtype == qkv.dtype && dy.dtype == qkv.dtype && dqkv.dtype == qkv.dtype && lse.dtype == DType::f32);
  const LibraryScope library;
  const std::lock_guard lock(state_->mutex);
  const Plan& plan = state_->plan(shape, qkv.dtype, AttentionPass::backward, deterministic);
  const PackedAddresses in(qkv, shape), out(dqkv, shape);
  const Scalars scalars{static_cast<float>(shape.scale)};
  char* workspace = static_cast<char*>(stream.workspace(plan.workspace_bytes()));
  char* sums = workspace + aligned(plan.engine_bytes);
  VariantPack pack;
  pack.add(Uid::q, in.q).add(Uid::k, in.k).add(Uid::v, in.v).add(Uid::y, y.data).add(Uid::dy, dy.data);
  pack.add(Uid::lse, lse.data).add(Uid::dq, out.q).add(Uid::dk, out.k).add(Uid::dv, out.v);
  pack.add(Uid::dy_y_sums, sums).add(Uid::scale, &scalars.scale).add(Uid::one, &scalars.one);
  if (shape.causal) pack.add(Uid::minus_infinity, &scalars.minus_infinity);
  if (plan.dq_bytes > 0) pack.add(Uid::dq_sums, sums + aligned(plan.sums_bytes));
  PC_CUDNN(cudnnSetStream(state_->handle, cuda_stream(stream)), "a handle");
  pack.execute(state_->handle, plan, workspace);
}

namespace {

// One for each device, by the ordinal that is current. A handle is told the stream at each call, which costs next to
// nothing; were it kept by stream instead, a new stream at the address of an old one would find the old one's handle,
// and every stream would build its own plans. Never destroyed: at the end of the program CUDA may be gone before
// our statics are.
CudnnAttention& of_current_device() {
  static std::mutex mutex;
  static auto& of_devices = *new std::map<int, CudnnAttention>;  // NOLINT(cppcoreguidelines-owning-memory)
  int ordinal = 0;
  PC_CUDA(cudaGetDevice(&ordinal));
  const std::lock_guard lock(mutex);
  return of_devices[ordinal];
}

}  // namespace

std::int64_t cudnn_version() { return static_cast<std::int64_t>(cudnnGetVersion()); }

bool cudnn_attention_supports(const AttentionShape& s, DType dtype, const Dropout& dropout) {
  // 9.10.0 and .1 have known faults in attention; before them −∞ was no valid mask. Up to 9.15 backward needs a padding
  // mask where T is no multiple of 128.
  static const std::int64_t version = cudnn_version();
  if (version < 91002 || (version <= 91500 && s.sequence % 128 != 0)) return false;
  if (dropout.p > 0 || (dtype != DType::bf16 && dtype != DType::f16)) return false;
  return s.head_dim > 0 && s.head_dim % 8 == 0 && s.head_dim <= 128 && s.sequence > 1 && s.batch > 0 &&
         s.num_heads > 0 && s.num_kv_heads > 0 && s.num_heads % s.num_kv_heads == 0;
}

void cudnn_attention_forward(ConstTensorView qkv, TensorView y, TensorView lse, const AttentionShape& shape,
                             Stream& stream) {
  of_current_device().forward(qkv, y, lse, shape, stream);
}

void cudnn_attention_backward(ConstTensorView dy, ConstTensorView qkv, ConstTensorView y, ConstTensorView lse,
                              TensorView dqkv, const AttentionShape& shape, bool deterministic, Stream& stream) {
  of_current_device().backward(dy, qkv, y, lse, dqkv, shape, deterministic, stream);
}

std::int64_t cudnn_attention_backward_workspace_bytes(const AttentionShape& shape, DType dtype, bool deterministic) {
  return of_current_device().plan_info(shape, dtype, AttentionPass::backward, deterministic).workspace_bytes;
}

}  // namespace potato::cuda
