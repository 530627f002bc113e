// Collectives and point-to-point transfers of tensors along one axis of the grid, enqueued on a stream.
//
// A communicator belongs to one stream: that stream's thread issues its operations in program order. Every rank of the
// group must make the same calls in the same order. Back ends: `mpi` for host memory, `nccl` for ranks with a GPU each,
// `staged` (pinned host memory and MPI) for ranks that share a GPU, `local` for a group of one, `dry` which only
// counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "potato/comm/collective_check.hpp"
#include "potato/core/flight_recorder.hpp"
#include "potato/device/stream.hpp"
#include "potato/device/timer.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// A direction of the process grid. `embedding` joins first and last stage of a pipeline, which share the tied weight.
enum class Axis : std::uint8_t { world, data, tensor, pipeline, embedding };

std::string_view axis_name(Axis axis);

enum class ReduceOp : std::uint8_t { sum, max };

// A point-to-point transfer under way; owned by the caller, must outlive it; reusable after wait().
struct Transfer {
  void* request = nullptr;  // the back end's; `mpi`: set and read by the stream's thread
  void* slot = nullptr;     // `nccl`, `staged`: what the transfer holds until wait(); set and read by the host
  int peer = -1;            // of the last send or receive, for the flight recorder
  bool is_send = false;
  std::int64_t num_bytes = 0;
};

// For benchmarks and tests on one machine: collectives of `mpi` take at least as long as the ring algorithm on such a
// link. The stream sleeps meanwhile, it does not spin.
struct LinkOptions {
  double gb_per_s = 0;  // 1e9 bytes a second; 0: off
};

struct CommStats {
  // Payload of all calls on this rank; an all-reduce counts twice, as the reduce-scatter and all-gather that it is.
  double bytes = 0;
  std::int64_t num_calls = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  Axis axis() const noexcept { return axis_; }
  int rank() const noexcept { return rank_; }
  int num_ranks() const noexcept { return num_ranks_; }
  virtual std::string_view transport() const = 0;  // "mpi", "nccl", "staged", "local", "dry"

  // In place, over the group. x: any shape; fp32, fp64, bf16, fp16 (each partial sum rounded), int32, int64. All ranks
  // end with bitwise equal results.
  void all_reduce(TensorView x, ReduceOp op, Stream& stream);
  // full [n · E] = the shards [E] of all ranks in rank order. `shard` may be its own place in `full`.
  void all_gather(ConstTensorView shard, TensorView full, Stream& stream);
  // shard [E] = this rank's part of the sum over ranks of full [n · E]. `shard` may be its own place in `full`, whose
  // other places are then undefined.
  void reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream);
  void broadcast(TensorView x, int root, Stream& stream);

  // Point to point; messages between two ranks with one tag arrive in the order they were sent. `send` and `receive`
  // only start; the memory is free (or filled) for work enqueued on the stream after wait(). wait() of a transfer that
  // was never started, or already waited for, does nothing.
  void send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream);
  void receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream);
  void wait(Transfer& transfer, Stream& stream);

  // Notes every operation in `recorder`, which must outlive this: when it runs where the host runs it (`mpi`, and what
  // `staged` has of it), on a GPU when it is enqueued.
  virtual void set_recorder(FlightRecorder* recorder) noexcept { recorder_ = recorder; }
  void set_check(std::unique_ptr<CollectiveCheck> check) noexcept { check_ = std::move(check); }
  // The recorder's lane of an axis' stream (see GridCommunicators).
  static int lane_of(Axis axis) noexcept { return axis == Axis::data || axis == Axis::embedding ? 1 : 0; }

  const CommStats& stats() const noexcept { return stats_; }
  // Time that the stream spends inside collectives, and in wait() of point-to-point transfers.
  StreamTimer& collective_timer() noexcept { return collective_timer_; }
  StreamTimer& wait_timer() noexcept { return wait_timer_; }

  // Throws Error where the transport has failed in the background. Once a step, after the stream was waited for: what
  // an operation that failed left behind must not be used.
  virtual void check_async() {}
  // For a watchdog, from any thread: what is wrong ("" if nothing is): a failure in the background, or an operation
  // that has been running on the device for more than `timeout_s`.
  virtual std::string trouble(double timeout_s) {
    static_cast<void>(timeout_s);
    return {};
  }
  // For a watchdog that has found trouble, from any thread: ends what is under way, with undefined results, and makes
  // every later call throw. May leave it at that where the transport is inside a call.
  virtual void abort() noexcept {}

 protected:
  // runs_on_host: operations are host tasks, whatever the stream's device.
  Communicator(Axis axis, int rank, int num_ranks, bool runs_on_host = false)
      : axis_(axis), rank_(rank), num_ranks_(num_ranks), runs_on_host_(runs_on_host) {}

  virtual void do_all_reduce(TensorView x, ReduceOp op, Stream& stream) = 0;
  virtual void do_all_gather(ConstTensorView shard, TensorView full, Stream& stream) = 0;
  virtual void do_reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) = 0;
  virtual void do_broadcast(TensorView x, int root, Stream& stream) = 0;
  virtual void do_send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) = 0;
  virtual void do_receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) = 0;
  virtual void do_wait(Transfer& transfer, Stream& stream) = 0;

 private:
  // Whether a shard is its own place in the whole. Throws Error for sizes that do not fit, or any other overlap.
  bool is_in_place(const ConstTensorView& shard, const ConstTensorView& full) const;

  void account(double num_bytes) noexcept {
    stats_.bytes += num_bytes;
    ++stats_.num_calls;
  }

  // Around the back end's part of every operation.
  void begin(FlightOp op, std::int64_t num_bytes, int peer, Stream& stream);
  void end(Stream& stream);
  void compare(FlightOp op, const ConstTensorView& x, std::int64_t detail, Stream& stream);

  FlightRecorder* recorder_ = nullptr;
  std::unique_ptr<CollectiveCheck> check_;
  CommStats stats_;
  StreamTimer collective_timer_;
  StreamTimer wait_timer_;
  Axis axis_;
  int rank_;
  int num_ranks_;
  bool runs_on_host_;
};

std::unique_ptr<Communicator> make_dry_communicator(Axis axis, int rank, int num_ranks);
// A group of one rank: nothing to talk to. send() and receive() throw Error.
std::unique_ptr<Communicator> make_local_communicator(Axis axis);

}  // namespace potato
