// Collectives run on the caller's stream. Point-to-point transfers do not, for the following reason.
//
// A kernel that sends ends only when its peer receives, and occupies its stream until then. In 1F1B two neighbours each
// send first (an activation forward, a gradient back) and receive after: with sends in the compute stream both would
// wait for ever. NCCL also runs the operations of one of its communicators one after the other, whatever their streams,
// so a stream for sends and one for receives are not enough. Hence a lane for each (peer, direction, tag): a
// communicator of two ranks with a stream of its own, ordered against the compute stream by events only:
//   send:    the lane waits for what the compute stream has done so far, and sends;
//   receive: the same (the memory must be free), and receives;
//   wait:    the compute stream waits for the lane's event.
// A lane carries one channel of the schedule, so a transfer waits only for earlier transfers of its own channel, and
// the compute stream waits only in wait(). That is what the schedule checker (pipeline/check.hpp) proves free of
// deadlock: asynchronous sends, one in flight on each channel, first in, first out.
//
// This holds as long as nothing else makes streams wait for each other. (1) Streams that share one of the device's
// hardware queues do: CUDA_DEVICE_MAX_CONNECTIONS is 32 (prepare_cuda_environment), and a rank with a lane in and out
// for both kinds has fewer streams than that, NCCL's own included. (2) The host must not wait for a peer: everything is
// connected in the constructor, in one order for all ranks. (3) The kernels must fit the device together with those of
// other communicators: lanes get few blocks, and compute kernels never wait for anyone. (4) Loading a kernel may
// wait for the device: CUDA_MODULE_LOADING is EAGER.
#include "potato/comm/nccl_communicator.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "nccl_comm.hpp"
#include "op_log.hpp"
#include "potato/comm/mpi_check.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/clock.hpp"
#include "potato/device/cuda.hpp"

namespace potato {

namespace {

// Blocks of a lane's kernels. They spin while they wait for the peer, beside the layers' kernels; four of an H200's 132
// SMs move an activation of some tens of MB in well under a millisecond over NVLink.
constexpr int lane_ctas = 4;

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
  }
  throw Error("unknown dtype");
}

// Owns a stream of CUDA that runs ahead of others where blocks compete for the device.
class OwnedStream {
 public:
  OwnedStream() {
    int lowest = 0;
    int highest = 0;
    PC_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    PC_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
  }
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

// A few bytes of device memory for the first operation of a connection.
std::unique_ptr<void, DeviceFree> make_scratch() {
  constexpr std::size_t num_bytes = 256;
  void* memory = nullptr;
  PC_CUDA(cudaMalloc(&memory, num_bytes));
  std::unique_ptr<void, DeviceFree> owner(memory);
  PC_CUDA(cudaMemset(memory, 0, num_bytes));
  PC_CUDA(cudaDeviceSynchronize());
  return owner;
}

// Waits for the stream, no longer than `timeout_s`.
void wait_for(cudaStream_t stream, const NcclComm& comm, const char* what, double timeout_s) {
  const double start_s = now_s();
  for (cudaError_t state = cudaStreamQuery(stream); state != cudaSuccess; state = cudaStreamQuery(stream)) {
    if (state != cudaErrorNotReady) PC_CUDA(state);
    const std::string error = comm.async_error();
    if (!error.empty()) throw NcclError(cat(what, ": ", error));
    if (now_s() - start_s > timeout_s) throw NcclError(cat(what, ": no answer from the peers for ", timeout_s, " s"));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  cudaGetLastError();  // cudaErrorNotReady was an answer
}

ncclUniqueId make_unique_id() {
  const LibraryScope library;
  ncclUniqueId id{};
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
  return id;
}

struct Lane {
  Lane(int peer_rank, int tag_of_all, bool is_sender, NcclComm&& pair)
      : peer(peer_rank), tag(tag_of_all), sends(is_sender), comm(std::move(pair)) {}

  int peer;
  int tag;
  bool sends;
  NcclComm comm;  // the sender is rank 0, the receiver rank 1
  OwnedStream stream;
};

// What a transfer holds between its start and wait().
struct TransferEvents {
  OwnedEvent ready{cudaEventDisableTiming};
  OwnedEvent done{cudaEventDisableTiming};
  bool in_use = false;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Axis axis, MPI_Comm mpi, int rank, int num_ranks, Device device, const NcclOptions& options)
      : Communicator(axis, rank, num_ranks), device_(device), options_(options) {
    const LibraryScope library;
    const auto scratch = make_scratch();
    ncclUniqueId id{};
    if (rank == 0) id = make_unique_id();
    PC_MPI(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, mpi));
    comm_.emplace_back(id, rank, num_ranks, 0, options.timeout_s);
    const OwnedStream stream;
    PC_NCCL(ncclAllReduce(scratch.get(), scratch.get(), 1, ncclFloat32, ncclSum, nccl(), stream.get()), comm());
    wait_for(stream.get(), comm(), "the first all-reduce", options.timeout_s);
    open_lanes(mpi, scratch.get());
  }

  // Collective where it closes: all ranks end their communicators in the same order. While an exception is on its way,
  // or after a failure, peers may be gone, and NcclComm's destructors abort.
  ~NcclCommunicator() override {
    if (failed_.load() || std::uncaught_exceptions() != uncaught_) return;
    try {
      cudaSetDevice(device_.ordinal);
      for (Lane& lane : lanes_) lane.comm.close();
      comm().close();
    } catch (const std::exception& error) {
      std::cerr << "axis " << axis_name(axis()) << ": NCCL was not closed: " << error.what() << '\n';
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::string_view transport() const override { return "nccl"; }

  void check_async() override {
    const std::lock_guard lock(mutex_);
    check_usable();
    const std::string error = async_error();
    if (!error.empty()) throw NcclError(error);
  }

  std::string trouble(double timeout_s) override {
    if (failed_.load()) return cat("axis ", axis_name(axis()), ": aborted");
    // Without the lock: the handles change only in abort(), which the same watchdog calls, and these calls of NCCL and
    // CUDA are meant for another thread.
    std::string text = async_error();
    if (!text.empty()) return text;
    cudaSetDevice(device_.ordinal);
    text = collectives_.overdue(timeout_s);
    if (text.empty()) text = waits_.overdue(timeout_s);
    return text.empty() ? text : cat("axis ", axis_name(axis()), ": ", text);
  }

  void abort() noexcept override {
    failed_.store(true);
    const std::unique_lock lock(mutex_, std::chrono::seconds(2));
    if (!lock.owns_lock()) return;  // the owner is inside a call: it must keep its handle
    for (Lane& lane : lanes_) lane.comm.abort();
    comm().abort();
  }

 private:
  NcclComm& comm() noexcept { return comm_.front(); }
  ncclComm_t nccl() const noexcept { return comm_.front().get(); }

  void check_usable() const {
    if (failed_.load()) throw NcclError(cat("axis ", axis_name(axis()), ": NCCL was aborted"));
  }

  std::string async_error() const {
    std::string error = comm_.front().async_error();
    for (const Lane& lane : lanes_) {
      if (error.empty()) error = lane.comm.async_error();
    }
    return error.empty() ? error : cat("axis ", axis_name(axis()), ": ", error);
  }

  // In one order of all lanes of the axis: of those that are not open yet, both ranks of the first are free for it, so
  // no two ranks wait for each other. Every other sender first, so that many lanes open at the same time.
  void open_lanes(MPI_Comm mpi, void* scratch) {
    for (int tag = 0; tag < options_.num_tags; ++tag) {
      for (const int parity : {0, 1}) {
        for (int sender = parity; sender < num_ranks(); sender += 2) {
          const bool forward = tag % 2 == 0;
          const int receiver = (sender + (forward ? 1 : num_ranks() - 1)) % num_ranks();
          const bool wraps = forward ? receiver == 0 : sender == 0;
          if (wraps && options_.num_tags <= 2) continue;  // one chunk a stage: the pipeline has two ends
          if (rank() == sender) open_lane(mpi, receiver, tag, true, scratch);
          if (rank() == receiver) open_lane(mpi, sender, tag, false, scratch);
        }
      }
    }
  }

  // With a first message, which makes the connection.
  void open_lane(MPI_Comm mpi, int peer, int tag, bool sends, void* scratch) {
    ncclUniqueId id{};
    if (sends) {
      id = make_unique_id();
      PC_MPI(MPI_Send(&id, sizeof(id), MPI_BYTE, peer, tag, mpi));
    } else {
      PC_MPI(MPI_Recv(&id, sizeof(id), MPI_BYTE, peer, tag, mpi, MPI_STATUS_IGNORE));
    }
    Lane& lane = lanes_.emplace_back(peer, tag, sends, NcclComm(id, sends ? 0 : 1, 2, lane_ctas, options_.timeout_s));
    transfer_bytes(lane, scratch, 4);
    wait_for(lane.stream.get(), lane.comm, "the first message", options_.timeout_s);
  }

  static void transfer_bytes(Lane& lane, void* data, std::int64_t num_bytes) {
    const auto count = static_cast<std::size_t>(num_bytes);
    if (lane.sends) {
      PC_NCCL(ncclSend(data, count, ncclInt8, 1, lane.comm.get(), lane.stream.get()), lane.comm);
    } else {
      PC_NCCL(ncclRecv(data, count, ncclInt8, 0, lane.comm.get(), lane.stream.get()), lane.comm);
    }
  }

  // Runs `call(cuda stream)` between two events of the stream.
  template <typename Call>
  void logged(OpLog& log, const char* name, const Stream& stream, const Call& call) {
    const LibraryScope library;
    const std::lock_guard lock(mutex_);
    check_usable();
    const cudaStream_t on = cuda_stream(stream);
    log.begin(on, name);
    call(on);
    log.end(on);
  }

  void do_all_reduce(TensorView x, ReduceOp op, Stream& stream) override {
    logged(collectives_, "an all-reduce", stream, [&](cudaStream_t on) {
      PC_NCCL(ncclAllReduce(x.data, x.data, static_cast<std::size_t>(x.num_elems()), nccl_type(x.dtype),
                            op == ReduceOp::sum ? ncclSum : ncclMax, nccl(), on),
              comm());
    });
  }

  void do_all_gather(ConstTensorView shard, TensorView full, Stream& stream) override {
    logged(collectives_, "an all-gather", stream, [&](cudaStream_t on) {
      PC_NCCL(ncclAllGather(shard.data, full.data, static_cast<std::size_t>(shard.num_elems()), nccl_type(full.dtype),
                            nccl(), on),
              comm());
    });
  }

  void do_reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) override {
    logged(collectives_, "a reduce-scatter", stream, [&](cudaStream_t on) {
      PC_NCCL(ncclReduceScatter(full.data, shard.data, static_cast<std::size_t>(shard.num_elems()),
                                nccl_type(full.dtype), ncclSum, nccl(), on),
              comm());
    });
  }

  void do_broadcast(TensorView x, int root, Stream& stream) override {
    logged(collectives_, "a broadcast", stream, [&](cudaStream_t on) {
      PC_NCCL(
          ncclBroadcast(x.data, x.data, static_cast<std::size_t>(x.num_elems()), nccl_type(x.dtype), root, nccl(), on),
          comm());
    });
  }

  Lane& find_lane(int peer, int tag, bool sends) {
    for (Lane& lane : lanes_) {
      if (lane.peer == peer && lane.tag == tag && lane.sends == sends) return lane;
    }
    throw Error(cat("axis ", axis_name(axis()), ": no lane was opened to ", sends ? "send to" : "receive from",
                    " rank ", peer, " with tag ", tag, " (NcclOptions::num_tags = ", options_.num_tags, ")"));
  }

  TransferEvents& take_events() {
    for (TransferEvents& events : transfer_events_) {
      if (!events.in_use) return events;
    }
    return transfer_events_.emplace_back();
  }

  void start(void* data, std::int64_t num_bytes, Lane& lane, Transfer& transfer, const Stream& stream) {
    PC_CHECK(transfer.slot == nullptr, "a transfer was started again without wait()");
    const LibraryScope library;
    const std::lock_guard lock(mutex_);
    check_usable();
    TransferEvents& events = take_events();
    PC_CUDA(cudaEventRecord(events.ready.get(), cuda_stream(stream)));
    PC_CUDA(cudaStreamWaitEvent(lane.stream.get(), events.ready.get(), 0));
    transfer_bytes(lane, data, num_bytes);
    PC_CUDA(cudaEventRecord(events.done.get(), lane.stream.get()));
    events.in_use = true;
    transfer.slot = &events;
  }

  void do_send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    // NCCL only reads it.
    start(const_cast<void*>(x.data), x.num_bytes(), find_lane(peer, tag, true), transfer, stream);
  }

  void do_receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    start(x.data, x.num_bytes(), find_lane(peer, tag, false), transfer, stream);
  }

  void do_wait(Transfer& transfer, Stream& stream) override {
    if (transfer.slot == nullptr) return;
    auto& events = *static_cast<TransferEvents*>(transfer.slot);
    logged(waits_, "a point-to-point transfer", stream,
           [&](cudaStream_t on) { PC_CUDA(cudaStreamWaitEvent(on, events.done.get(), 0)); });
    events.in_use = false;  // an event that is recorded again does not change what streams already wait for
    transfer.slot = nullptr;
  }

  Device device_;
  NcclOptions options_;
  int uncaught_ = std::uncaught_exceptions();
  std::atomic<bool> failed_{false};
  std::timed_mutex mutex_;     // held during every call of NCCL but the watchdog's questions
  std::deque<NcclComm> comm_;  // one, made in the constructor
  std::deque<Lane> lanes_;
  std::deque<TransferEvents> transfer_events_;
  OpLog collectives_;
  OpLog waits_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Axis axis, MPI_Comm comm, Device device,
                                                     const NcclOptions& options) {
  PC_CHECK(device.kind == DeviceKind::cuda, "NCCL on ", device_name(device));
  prepare_nccl(options);
  PC_CUDA(cudaSetDevice(device.ordinal));
  int rank = 0;
  int num_ranks = 1;
  PC_MPI(MPI_Comm_rank(comm, &rank));
  PC_MPI(MPI_Comm_size(comm, &num_ranks));
  return std::make_unique<NcclCommunicator>(axis, comm, rank, num_ranks, device, options);
}

}  // namespace potato
