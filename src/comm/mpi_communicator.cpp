#include "potato/comm/mpi_communicator.hpp"

#include <algorithm>

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
    default:
      throw Error(cat("MPI has no type for ", dtype_name(dtype)));
  }
}

// Adds the time of its scope to `total_s`, and marks the scope as MPI's.
class MpiScope {
 public:
  explicit MpiScope(double& total_s) : total_s_(total_s), start_s_(now_s()) {}
  ~MpiScope() { total_s_ += now_s() - start_s_; }
  MpiScope(const MpiScope&) = delete;
  MpiScope& operator=(const MpiScope&) = delete;

 private:
  LibraryScope library_;
  double& total_s_;
  double start_s_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(Axis axis, MPI_Comm comm, int rank, int num_ranks)
      : Communicator(axis, rank, num_ranks), comm_(comm) {}
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  std::string_view transport() const override { return "mpi"; }

 private:
  void do_all_reduce(TensorView x, ReduceOp op, Stream& stream) override {
    const MPI_Datatype type = mpi_type(x.dtype);
    const std::int64_t elem_bytes = dtype_bytes(x.dtype);
    stream.enqueue([this, x, type, elem_bytes, mpi_op = op == ReduceOp::sum ? MPI_SUM : MPI_MAX] {
      const MpiScope scope(stats_.collective_s);
      for (std::int64_t begin = 0; begin < x.num_elems(); begin += max_elems_per_call) {
        const auto count = static_cast<int>(std::min(max_elems_per_call, x.num_elems() - begin));
        PC_MPI(
            MPI_Allreduce(MPI_IN_PLACE, static_cast<char*>(x.data) + begin * elem_bytes, count, type, mpi_op, comm_));
      }
    });
  }

  void do_all_gather(ConstTensorView shard, TensorView full, Stream& stream) override {
    const MPI_Datatype type = mpi_type(full.dtype);
    const int count = narrow<int>(shard.num_elems());
    stream.enqueue([this, shard, full, type, count] {
      const MpiScope scope(stats_.collective_s);
      PC_MPI(MPI_Allgather(shard.data, count, type, full.data, count, type, comm_));
    });
  }

  void do_reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) override {
    const MPI_Datatype type = mpi_type(full.dtype);
    const int count = narrow<int>(shard.num_elems());
    stream.enqueue([this, full, shard, type, count] {
      const MpiScope scope(stats_.collective_s);
      PC_MPI(MPI_Reduce_scatter_block(full.data, shard.data, count, type, MPI_SUM, comm_));
    });
  }

  void do_broadcast(TensorView x, int root, Stream& stream) override {
    const MPI_Datatype type = mpi_type(x.dtype);
    const int count = narrow<int>(x.num_elems());
    stream.enqueue([this, x, root, type, count] {
      const MpiScope scope(stats_.collective_s);
      PC_MPI(MPI_Bcast(x.data, count, type, root, comm_));
    });
  }

  static_assert(sizeof(MPI_Request) <= sizeof(void*), "a request must fit a Transfer");

  static MPI_Request* request_of(Transfer& transfer) { return reinterpret_cast<MPI_Request*>(&transfer.request); }

  void do_send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    const int count = narrow<int>(x.num_elems());
    stream.enqueue([this, x, peer, tag, count, request = request_of(transfer)] {
      const MpiScope scope(stats_.wait_s);
      PC_MPI(MPI_Isend(x.data, count, mpi_type(x.dtype), peer, tag, comm_, request));
    });
  }

  void do_receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    const int count = narrow<int>(x.num_elems());
    stream.enqueue([this, x, peer, tag, count, request = request_of(transfer)] {
      const MpiScope scope(stats_.wait_s);
      PC_MPI(MPI_Irecv(x.data, count, mpi_type(x.dtype), peer, tag, comm_, request));
    });
  }

  void do_wait(Transfer& transfer, Stream& stream) override {
    stream.enqueue([this, request = request_of(transfer)] {
      if (*request == MPI_Request{}) return;  // never started
      const MpiScope scope(stats_.wait_s);
      PC_MPI(MPI_Wait(request, MPI_STATUS_IGNORE));
      *request = MPI_Request{};
    });
  }

  MPI_Comm comm_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(Axis axis, MPI_Comm comm) {
  MPI_Comm own = MPI_COMM_NULL;
  PC_MPI(MPI_Comm_dup(comm, &own));
  PC_MPI(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
  int rank = 0;
  int num_ranks = 1;
  PC_MPI(MPI_Comm_rank(own, &rank));
  PC_MPI(MPI_Comm_size(own, &num_ranks));
  return std::make_unique<MpiCommunicator>(axis, own, rank, num_ranks);
}

}  // namespace potato
