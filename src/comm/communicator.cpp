#include "potato/comm/communicator.hpp"

#include "potato/kernels/elementwise.hpp"

namespace potato {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::world:
      return "world";
    case Axis::data:
      return "data";
    case Axis::tensor:
      return "tensor";
    case Axis::pipeline:
      return "pipeline";
    case Axis::embedding:
      return "embedding";
  }
  return "unknown";
}

void Communicator::begin(FlightOp op, std::int64_t num_bytes, int peer, Stream& stream) {
  if (recorder_ == nullptr) return;
  const auto note = [recorder = recorder_, lane = lane_of(axis_), axis = static_cast<int>(axis_), op, num_bytes, peer] {
    recorder->begin(lane, axis, op, peer, num_bytes);
  };
  if (runs_on_host_) {
    stream.enqueue(note);
  } else if (stream.device().kind != DeviceKind::dry) {
    note();
  }
}

void Communicator::end(Stream& stream) {
  if (recorder_ == nullptr || !runs_on_host_) return;
  stream.enqueue(
      [recorder = recorder_, lane = lane_of(axis_), axis = static_cast<int>(axis_)] { recorder->end(lane, axis); });
}

void Communicator::compare(FlightOp op, const ConstTensorView& x, std::int64_t detail, Stream& stream) {
  if (!check_) return;
  CollectiveSignature signature;
  signature.op = static_cast<std::int64_t>(op);
  signature.num_elems = x.num_elems();
  signature.dtype = static_cast<std::int64_t>(x.dtype);
  signature.detail = detail;
  check_->enqueue(signature, stream);
}

void Communicator::all_reduce(TensorView x, ReduceOp op, Stream& stream) {
  if (num_ranks_ == 1 || x.num_elems() == 0) return;
  account(2 * static_cast<double>(x.num_bytes()));
  collective_timer_.start(stream);
  begin(FlightOp::all_reduce, x.num_bytes(), -1, stream);
  compare(FlightOp::all_reduce, x, static_cast<std::int64_t>(op), stream);
  do_all_reduce(x, op, stream);
  end(stream);
  collective_timer_.stop(stream);
}

bool Communicator::is_in_place(const ConstTensorView& shard, const ConstTensorView& full) const {
  PC_CHECK(shard.dtype == full.dtype && shard.num_elems() * num_ranks_ == full.num_elems(), axis_name(axis_), ": ",
           shard.shape, " times ", num_ranks_, " is not ", full.shape);
  const auto* begin = static_cast<const char*>(full.data);
  const auto* part = static_cast<const char*>(shard.data);
  if (part == begin + rank_ * shard.num_bytes()) return true;
  // Addresses on `dry` say nothing.
  PC_CHECK(
      shard.device.kind == DeviceKind::dry || part + shard.num_bytes() <= begin || part >= begin + full.num_bytes(),
      axis_name(axis_), ": a shard lies in the whole, but not in its place");
  return false;
}

void Communicator::all_gather(ConstTensorView shard, TensorView full, Stream& stream) {
  const bool in_place = is_in_place(shard, full);
  if (full.num_elems() == 0) return;
  if (num_ranks_ == 1) {
    if (!in_place) copy(shard, full, stream);
    return;
  }
  account(static_cast<double>(full.num_bytes()));
  collective_timer_.start(stream);
  begin(FlightOp::all_gather, full.num_bytes(), -1, stream);
  compare(FlightOp::all_gather, full, 0, stream);
  do_all_gather(shard, full, stream);
  end(stream);
  collective_timer_.stop(stream);
}

void Communicator::reduce_scatter(ConstTensorView full, TensorView shard, Stream& stream) {
  const bool in_place = is_in_place(shard, full);
  if (full.num_elems() == 0) return;
  if (num_ranks_ == 1) {
    if (!in_place) copy(full, shard, stream);
    return;
  }
  account(static_cast<double>(full.num_bytes()));
  collective_timer_.start(stream);
  begin(FlightOp::reduce_scatter, full.num_bytes(), -1, stream);
  compare(FlightOp::reduce_scatter, full, 0, stream);
  do_reduce_scatter(full, shard, stream);
  end(stream);
  collective_timer_.stop(stream);
}

void Communicator::broadcast(TensorView x, int root, Stream& stream) {
  if (num_ranks_ == 1 || x.num_elems() == 0) return;
  account(static_cast<double>(x.num_bytes()));
  collective_timer_.start(stream);
  begin(FlightOp::broadcast, x.num_bytes(), -1, stream);
  compare(FlightOp::broadcast, x, root, stream);
  do_broadcast(x, root, stream);
  end(stream);
  collective_timer_.stop(stream);
}

void Communicator::send(ConstTensorView x, int peer, int tag, Transfer& transfer, Stream& stream) {
  PC_CHECK(peer >= 0 && peer < num_ranks_, "peer ", peer, " of ", num_ranks_);
  account(static_cast<double>(x.num_bytes()));
  transfer.peer = peer;
  transfer.is_send = true;
  transfer.num_bytes = x.num_bytes();
  do_send(x, peer, tag, transfer, stream);
}

void Communicator::receive(TensorView x, int peer, int tag, Transfer& transfer, Stream& stream) {
  PC_CHECK(peer >= 0 && peer < num_ranks_, "peer ", peer, " of ", num_ranks_);
  transfer.peer = peer;
  transfer.is_send = false;
  transfer.num_bytes = x.num_bytes();
  do_receive(x, peer, tag, transfer, stream);
}

void Communicator::wait(Transfer& transfer, Stream& stream) {
  wait_timer_.start(stream);
  begin(transfer.is_send ? FlightOp::send : FlightOp::receive, transfer.num_bytes, transfer.peer, stream);
  do_wait(transfer, stream);
  end(stream);
  wait_timer_.stop(stream);
}

namespace {

// Counts, moves nothing.
class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(Axis axis, int rank, int num_ranks) : Communicator(axis, rank, num_ranks) {}
  std::string_view transport() const override { return "dry"; }

 private:
  void do_all_reduce(TensorView, ReduceOp, Stream&) override {}
  void do_all_gather(ConstTensorView, TensorView, Stream&) override {}
  void do_reduce_scatter(ConstTensorView, TensorView, Stream&) override {}
  void do_broadcast(TensorView, int, Stream&) override {}
  void do_send(ConstTensorView, int, int, Transfer&, Stream&) override {}
  void do_receive(TensorView, int, int, Transfer&, Stream&) override {}
  void do_wait(Transfer&, Stream&) override {}
};

// The base class does all the work of a group of one.
class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(Axis axis) : Communicator(axis, 0, 1) {}
  std::string_view transport() const override { return "local"; }

 private:
  void do_all_reduce(TensorView, ReduceOp, Stream&) override {}
  void do_all_gather(ConstTensorView, TensorView, Stream&) override {}
  void do_reduce_scatter(ConstTensorView, TensorView, Stream&) override {}
  void do_broadcast(TensorView, int, Stream&) override {}
  void do_send(ConstTensorView, int, int, Transfer&, Stream&) override { fail(); }
  void do_receive(TensorView, int, int, Transfer&, Stream&) override { fail(); }
  void do_wait(Transfer&, Stream&) override {}

  [[noreturn]] void fail() const { throw Error(cat("axis ", axis_name(axis()), " has one rank: no peer to talk to")); }
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(Axis axis) { return std::make_unique<LocalCommunicator>(axis); }

std::unique_ptr<Communicator> make_dry_communicator(Axis axis, int rank, int num_ranks) {
  return std::make_unique<DryCommunicator>(axis, rank, num_ranks);
}

}  // namespace potato
