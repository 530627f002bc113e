// Every operation is a copy to pinned memory, MPI's operation as a host task, and a copy back, all in the order of one
// stream. That order is all the synchronization there is: pinned memory may be used again by whatever is enqueued later
// on the same stream, and a communicator has only one.
#include "potato/comm/staged_communicator.hpp"

#include <algorithm>
#include <bit>
#include <deque>

#include "potato/comm/mpi_communicator.hpp"

namespace potato {

namespace {

constexpr Device host_device{DeviceKind::cpu, 0};

template <typename Void>
Void* advanced(Void* data, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(data) + bytes;
}

// Pinned memory of a point-to-point transfer that is under way.
struct Slot {
  Slot(std::int64_t bytes, HostMemory host)
      : arena(host_device, "staging", bytes, host), memory(arena.allocate(bytes)), capacity_bytes(bytes) {}

  Arena arena;
  void* memory;
  std::int64_t capacity_bytes;
  bool in_use = false;
  Transfer transfer;       // MPI's
  TensorView destination;  // of a receive; null data for a send
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, const StagedOptions& options)
      : Communicator(inner->axis(), inner->rank(), inner->num_ranks()), inner_(std::move(inner)), options_(options) {
    if (num_ranks() == 1) return;
    piece_.emplace_back(host_device, "staging", options_.piece_bytes, options_.host);
    piece_memory_ = piece_.back().allocate(options_.piece_bytes);
    for (int i = 0; i < options_.num_slots; ++i) slots_.emplace_back(options_.slot_bytes, options_.host);
  }

  std::string_view transport() const override { return "staged"; }
  void set_recorder(FlightRecorder* recorder) noexcept override { inner_->set_recorder(recorder); }

 private:
  // For one call. What it was timed with is not kept: the outer timers cover it, copies included.
  Communicator& mpi() noexcept {
    inner_->collective_timer().clear();
    inner_->wait_timer().clear();
    return *inner_;
  }

  TensorView staged(DType dtype, std::int64_t begin_elems, std::int64_t num_elems) const {
    return {advanced(piece_memory_, begin_elems * dtype_bytes(dtype)), dtype, {num_elems}, host_device};
  }

  // Calls body(begin, count) for pieces of `num_elems`, so that `copies` of a piece fit the pinned buffer. Whole cache
  // lines, where the buffer has room for them.
  template <typename Body>
  void for_each_piece(std::int64_t num_elems, DType dtype, std::int64_t copies, const Body& body) const {
    constexpr std::int64_t align_elems = 64;
    std::int64_t most = options_.piece_bytes / (copies * dtype_bytes(dtype));
    PC_CHECK(most > 0, "staging of ", options_.piece_bytes, " bytes is too small for ", copies, " ranks");
    if (most > align_elems) most -= most % align_elems;
    for (std::int64_t begin = 0; begin < num_elems; begin += most) body(begin, std::min(most, num_elems - begin));
  }

  void do_all_reduce(TensorView x, ReduceOp op, Stream& stream) override {
    for_each_piece(x.num_elems(), x.dtype, 1, [&](std::int64_t begin, std::int64_t count) {
      const TensorView piece = staged(x.dtype, 0, count);
      void* const device = advanced(x.data, begin * dtype_bytes(x.dtype));
      stream.transfer(piece.data, device, piece.num_bytes());
      mpi().all_reduce(piece, op, stream);
      stream.transfer(device, piece.data, piece.num_bytes());
    });
  }

  void do_all_gather(ConstTensorView shard, TensorView full, Stream& stream) override {
    const std::int64_t elem_bytes = dtype_bytes(full.dtype);
    for_each_piece(shard.num_elems(), full.dtype, num_ranks() + 1, [&](std::int64_t begin, std::int64_t count) {
      const TensorView mine = staged(full.dtype, 0, count);
      const TensorView all = staged(full.dtype, count, count * num_ranks());
      stream.transfer(mine.data, advanced(shard.data, begin * elem_bytes), mine.num_bytes());
      mpi().all_gather(mine, all, stream);
      for (std::int64_t r = 0; r < num_ranks(); ++r) {
        stream.transfer(advanced(full.data, (r * shard.num_elems() + begin) * elem_bytes),
                        advanced(all.data, r * mine.num_bytes()), mine.num_bytes());
      }
    });
  }

  void do_reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) override {
    const std::int64_t elem_bytes = dtype_bytes(full.dtype);
    for_each_piece(shard.num_elems(), full.dtype, num_ranks() + 1, [&](std::int64_t begin, std::int64_t count) {
      const TensorView mine = staged(full.dtype, 0, count);
      const TensorView all = staged(full.dtype, count, count * num_ranks());
      for (std::int64_t r = 0; r < num_ranks(); ++r) {
        stream.transfer(advanced(all.data, r * mine.num_bytes()),
                        advanced(full.data, (r * shard.num_elems() + begin) * elem_bytes), mine.num_bytes());
      }
      mpi().reduce_scatter(all, mine, stream);
      stream.transfer(advanced(shard.data, begin * elem_bytes), mine.data, mine.num_bytes());
    });
  }

  void do_broadcast(TensorView x, int root, Stream& stream) override {
    for_each_piece(x.num_elems(), x.dtype, 1, [&](std::int64_t begin, std::int64_t count) {
      const TensorView piece = staged(x.dtype, 0, count);
      void* const device = advanced(x.data, begin * dtype_bytes(x.dtype));
      if (rank() == root) stream.transfer(piece.data, device, piece.num_bytes());
      mpi().broadcast(piece, root, stream);
      if (rank() != root) stream.transfer(device, piece.data, piece.num_bytes());
    });
  }

  // The smallest free slot that is large enough; a new one where there is none. A run reaches its largest number of
  // transfers under way in the first step, and pins nothing after it.
  Slot& take_slot(std::int64_t num_bytes) {
    Slot* best = nullptr;
    for (Slot& slot : slots_) {
      if (slot.in_use || slot.capacity_bytes < num_bytes) continue;
      if (best == nullptr || slot.capacity_bytes < best->capacity_bytes) best = &slot;
    }
    if (best == nullptr) {
      const auto rounded = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(num_bytes, 4096)));
      best = &slots_.emplace_back(static_cast<std::int64_t>(rounded), options_.host);
    }
    best->in_use = true;
    return *best;
  }

  // The tensor is free as soon as it was copied, in the order of the stream; wait() only frees the slot.
  void do_send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    PC_CHECK(transfer.slot == nullptr, "a transfer was started again without wait()");
    Slot& slot = take_slot(x.num_bytes());
    slot.destination = {};
    stream.transfer(slot.memory, x.data, x.num_bytes());
    mpi().send({slot.memory, x.dtype, x.shape, host_device}, peer, tag, slot.transfer, stream);
    transfer.slot = &slot;
  }

  void do_receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) override {
    PC_CHECK(transfer.slot == nullptr, "a transfer was started again without wait()");
    Slot& slot = take_slot(x.num_bytes());
    slot.destination = x;
    mpi().receive({slot.memory, x.dtype, x.shape, host_device}, peer, tag, slot.transfer, stream);
    transfer.slot = &slot;
  }

  void do_wait(Transfer& transfer, Stream& stream) override {
    if (transfer.slot == nullptr) return;
    Slot& slot = *static_cast<Slot*>(transfer.slot);
    mpi().wait(slot.transfer, stream);
    if (slot.destination.data != nullptr) {
      stream.transfer(slot.destination.data, slot.memory, slot.destination.num_bytes());
    }
    slot.in_use = false;
    transfer.slot = nullptr;
  }

  std::unique_ptr<Communicator> inner_;
  StagedOptions options_;
  std::deque<Arena> piece_;  // at most one
  void* piece_memory_ = nullptr;
  std::deque<Slot> slots_;  // at fixed addresses: tasks hold pointers to them
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Axis axis, MPI_Comm comm, const StagedOptions& options) {
  return std::make_unique<StagedCommunicator>(make_mpi_communicator(axis, comm), options);
}

}  // namespace potato
