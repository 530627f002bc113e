// Collectives and point-to-point transfers of tensors along one axis of the grid, enqueued on a stream.
//
// A communicator belongs to one stream: that stream's thread issues its operations in program order. Every rank of the
// group must make the same calls in the same order. Back ends: `mpi` for host memory, `dry` which only counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "potato/device/stream.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// A direction of the process grid. `embedding` joins first and last stage of a pipeline, which share the tied weight.
enum class Axis : std::uint8_t { world, data, tensor, pipeline, embedding };

std::string_view axis_name(Axis axis);

enum class ReduceOp : std::uint8_t { sum, max };

// A point-to-point transfer under way; owned by the caller, must outlive it; reusable after wait().
struct Transfer {
  void* request = nullptr;  // the back end's
};

struct CommStats {
  double bytes = 0;  // payload of all calls on this rank
  std::int64_t num_calls = 0;
  double collective_s = 0;  // time the stream spent inside collectives
  double wait_s = 0;        // time the stream spent waiting for point-to-point transfers
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  Axis axis() const noexcept { return axis_; }
  int rank() const noexcept { return rank_; }
  int num_ranks() const noexcept { return num_ranks_; }
  virtual std::string_view transport() const = 0;  // "mpi", "dry"

  // In place, over the group. x: any shape; fp32, fp64, int32, int64. All ranks end with bitwise equal results.
  void all_reduce(TensorView x, ReduceOp op, Stream& stream);
  // full [n · E] = the shards [E] of all ranks in rank order. `shard` must not lie in `full`.
  void all_gather(ConstTensorView shard, TensorView full, Stream& stream);
  // shard [E] = this rank's part of the sum over ranks of full [n · E].
  void reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream);
  void broadcast(TensorView x, int root, Stream& stream);

  // Point to point; messages between two ranks with one tag arrive in the order they were sent. `send` and `receive`
  // only start; the memory is free (or filled) for work enqueued on the stream after wait(). wait() of a transfer that
  // was never started, or already waited for, does nothing.
  void send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream);
  void receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream);
  void wait(Transfer& transfer, Stream& stream);

  // Read it only while the stream is idle.
  const CommStats& stats() const noexcept { return stats_; }

 protected:
  Communicator(Axis axis, int rank, int num_ranks) : axis_(axis), rank_(rank), num_ranks_(num_ranks) {}

  virtual void do_all_reduce(TensorView x, ReduceOp op, Stream& stream) = 0;
  virtual void do_all_gather(ConstTensorView shard, TensorView full, Stream& stream) = 0;
  virtual void do_reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) = 0;
  virtual void do_broadcast(TensorView x, int root, Stream& stream) = 0;
  virtual void do_send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) = 0;
  virtual void do_receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) = 0;
  virtual void do_wait(Transfer& transfer, Stream& stream) = 0;

  CommStats stats_;

 private:
  void account(double num_bytes) noexcept {
    stats_.bytes += num_bytes;
    ++stats_.num_calls;
  }

  Axis axis_;
  int rank_;
  int num_ranks_;
};

std::unique_ptr<Communicator> make_dry_communicator(Axis axis, int rank, int num_ranks);

}  // namespace potato
