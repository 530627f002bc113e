#include "potato/comm/mpi_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "potato/comm/mpi_check.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/clock.hpp"
#include "potato/core/narrow.hpp"

namespace potato {

namespace {

constexpr std::int64_t max_elems_per_call = std::int64_t{1} << 30;  // MPI counts are int

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::bf16:
    case DType::f16:
      return MPI_UINT16_T;  // to move; reduced only with the operations below
  }
  throw Error(cat("MPI has no type for ", dtype_name(dtype)));
}

// MPI's reduction of 16-bit floats: widened, added in fp32, rounded to the stored type.
template <typename Half, ReduceOp op>
void reduce_half(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* x = static_cast<const Half*>(in);
  auto* y = static_cast<Half*>(in_out);
  for (int i = 0; i < *count; ++i) {
    const auto a = static_cast<float>(x[i]);
    const auto b = static_cast<float>(y[i]);
    y[i] = Half(op == ReduceOp::sum ? a + b : (a > b ? a : b));
  }
}

// Owns an MPI operation of our own. Commutative, so that MPI may use its best algorithms.
class OwnedOp {
 public:
  explicit OwnedOp(MPI_User_function* function) { PC_MPI(MPI_Op_create(function, 1, &op_)); }
  ~OwnedOp() { MPI_Op_free(&op_); }
  OwnedOp(const OwnedOp&) = delete;
  OwnedOp& operator=(const OwnedOp&) = delete;
  MPI_Op get() const noexcept { return op_; }

 private:
  MPI_Op op_ = MPI_OP_NULL;
};

struct HalfOps {
  OwnedOp bf16_sum{reduce_half<BFloat16, ReduceOp::sum>};
  OwnedOp bf16_max{reduce_half<BFloat16, ReduceOp::max>};
  OwnedOp f16_sum{reduce_half<Float16, ReduceOp::sum>};
  OwnedOp f16_max{reduce_half<Float16, ReduceOp::max>};

  MPI_Op pick(DType dtype, ReduceOp op) const noexcept {
    if (dtype == DType::bf16) return op == ReduceOp::sum ? bf16_sum.get() : bf16_max.get();
    if (dtype == DType::f16) return op == ReduceOp::sum ? f16_sum.get() : f16_max.get();
    return op == ReduceOp::sum ? MPI_SUM : MPI_MAX;
  }
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(Axis axis, MPI_Comm comm, int rank, int num_ranks, const LinkOptions& link)
      : Communicator(axis, rank, num_ranks, true), comm_(comm), link_(link) {}
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  std::string_view transport() const override { return "mpi"; }

 private:
  // Lasts at least as long as the slow link takes for this rank's part of so many bytes.
  class LinkTime {
   public:
    LinkTime(const MpiCommunicator& on, std::int64_t num_bytes) : end_s_(0) {
      if (on.link_.gb_per_s <= 0) return;
      const double part = static_cast<double>(on.num_ranks() - 1) / on.num_ranks();
      end_s_ = now_s() + part * static_cast<double>(num_bytes) / (on.link_.gb_per_s * 1e9);
    }
    ~LinkTime() {
      if (const double left_s = end_s_ - now_s(); left_s > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(left_s));
      }
    }
    LinkTime(const LinkTime&) = delete;
    LinkTime& operator=(const LinkTime&) = delete;

   private:
    double end_s_;
  };

  void do_all_reduce(TensorView x, ReduceOp op, Stream& stream) override {
    const MPI_Datatype type = mpi_type(x.dtype);
    const std::int64_t elem_bytes = dtype_bytes(x.dtype);
    stream.enqueue([this, x, type, elem_bytes, mpi_op = ops_.pick(x.dtype, op)] {
      const LibraryScope scope;
      const LinkTime time(*this, 2 * x.num_bytes());
      for (std::int64_t begin = 0; begin < x.num_elems(); begin += max_elems_per_call) {
        const auto count = static_cast<int>(std::min(max_elems_per_call, x.num_elems() - begin));
        PC_MPI(
            MPI_Allreduce(MPI_IN_PLACE, static_cast<char*>(x.data) + begin * elem_bytes, count, type, mpi_op, comm_));
      }
    });
  }

  // Where this rank's shard of so many bytes lies in the whole.
  const void* place_in(const ConstTensorView& full, std::int64_t shard_bytes) const {
    return static_cast<const char*>(full.data) + rank() * shard_bytes;
  }

  void do_all_gather(ConstTensorView shard, TensorView full, Stream& stream) override {
    const MPI_Datatype type = mpi_type(full.dtype);
    const int count = narrow<int>(shard.num_elems());
    stream.enqueue([this, shard, full, type, count] {
      const LibraryScope scope;
      const LinkTime time(*this, full.num_bytes());
      const bool in_place = shard.data == place_in(full, shard.num_bytes());
      PC_MPI(MPI_Allgather(in_place ? MPI_IN_PLACE : shard.data, count, type, full.data, count, type, comm_));
    });
  }

  void do_reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) override {
    const MPI_Datatype type = mpi_type(full.dtype);
    const int count = narrow<int>(shard.num_elems());
    stream.enqueue([this, full, shard, type, count, mpi_op = ops_.pick(full.dtype, ReduceOp::sum)] {
      const LibraryScope scope;
      const LinkTime time(*this, full.num_bytes());
      if (shard.data != place_in(full, shard.num_bytes())) {
        PC_MPI(MPI_Reduce_scatter_block(full.data, shard.data, count, type, mpi_op, comm_));
        return;
      }
      // In place MPI leaves the result at the start of the buffer.
      PC_MPI(MPI_Reduce_scatter_block(MPI_IN_PLACE, const_cast<void*>(full.data), count, type, mpi_op, comm_));
      std::memmove(shard.data, full.data, static_cast<std::size_t>(shard.num_bytes()));
    });
  }

  void do_broadcast(TensorView x, int root, Stream& stream) override {
    const MPI_Datatype type = mpi_type(x.dtype);
    const int count = narrow<int>(x.num_elems());
    stream.enqueue([this, x, root, type, count] {
      const LibraryScope scope;
      PC_MPI(MPI_Bcast(x.data, count, type, root, comm_));
    });
  }

  static_assert(sizeof(MPI_Request) <= sizeof(void*), "a request must fit a Transfer");

  static MPI_Request* request_of(Transfer& transfer) { return reinterpret_cast<MPI_Request*>(&transfer.request); }

  void do_send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    const int count = narrow<int>(x.num_elems());
    stream.enqueue([this, x, peer, tag, count, request = request_of(transfer)] {
      const LibraryScope scope;
      PC_MPI(MPI_Isend(x.data, count, mpi_type(x.dtype), peer, tag, comm_, request));
    });
  }

  void do_receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    const int count = narrow<int>(x.num_elems());
    stream.enqueue([this, x, peer, tag, count, request = request_of(transfer)] {
      const LibraryScope scope;
      PC_MPI(MPI_Irecv(x.data, count, mpi_type(x.dtype), peer, tag, comm_, request));
    });
  }

  void do_wait(Transfer& transfer, Stream& stream) override {
    stream.enqueue([request = request_of(transfer)] {
      if (*request == MPI_Request{}) return;  // never started
      const LibraryScope scope;
      PC_MPI(MPI_Wait(request, MPI_STATUS_IGNORE));
      *request = MPI_Request{};
    });
  }

  MPI_Comm comm_;
  LinkOptions link_;
  HalfOps ops_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(Axis axis, MPI_Comm comm, const LinkOptions& link) {
  MPI_Comm own = MPI_COMM_NULL;
  PC_MPI(MPI_Comm_dup(comm, &own));
  PC_MPI(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
  int rank = 0;
  int num_ranks = 1;
  PC_MPI(MPI_Comm_rank(own, &rank));
  PC_MPI(MPI_Comm_size(own, &num_ranks));
  return std::make_unique<MpiCommunicator>(axis, own, rank, num_ranks, link);
}

}  // namespace potato
