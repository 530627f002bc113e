// The transports of GPUs, on inputs that sum exactly: NCCL where each rank has a GPU, staging through the host always.
// The staging itself also runs on the CPU, where "device" memory is host memory.
#include <mpi.h>

#include <cstdio>
#include <vector>

#include "potato/comm/gpu_topology.hpp"
#include "potato/comm/mpi_communicator.hpp"
#include "potato/comm/process_grid.hpp"
#include "potato/comm/staged_communicator.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

const Device cpu{DeviceKind::cpu, 0};

void show_skip(const char* why) {
#ifdef SKIP
  SKIP(why);
#else
  std::fprintf(stderr, "SKIPPED: %s\n", why);
  WARN("SKIPPED: " << why);
#endif
}

// A communicator with a stream, and tensors on the stream's device with values from the host.
struct Bench {
  explicit Bench(Communicator& communicator, Device on)
      : comm(communicator),
        stream(on, StreamOptions{.name = "comm", .on_error = {}}),
        arena(on, "test", std::int64_t{192} << 20),
        rank(comm.rank()),
        num_ranks(comm.num_ranks()) {}

  template <typename T>
  Tensor tensor(const std::vector<T>& values) {
    Tensor result(arena, dtype_of<T>, {static_cast<std::int64_t>(values.size())});
    stream.transfer(result.view().data, values.data(), result.view().num_bytes());
    stream.synchronize();
    return result;
  }
  template <typename T>
  std::vector<T> values(const Tensor& tensor) {
    std::vector<T> result(static_cast<std::size_t>(tensor.view().num_elems()));
    stream.transfer(result.data(), tensor.view().data, tensor.view().num_bytes());
    stream.synchronize();
    return result;
  }

  Communicator& comm;
  Stream stream;
  Arena arena;
  int rank;
  int num_ranks;
};

template <typename T>
T number(int value) {
  return static_cast<T>(static_cast<float>(value));
}

template <typename T>
bool same(T a, T b) {
  if constexpr (is_half<T>) {
    return a.bits == b.bits;
  } else {
    return a == b;
  }
}

// Sums stay below 256: exact in bfloat16 too.
template <typename T>
void check_reductions(Bench& r) {
  for (const std::size_t count : {1UL, 7UL, 1000UL, 100003UL}) {
    std::vector<T> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = number<T>(static_cast<int>(i % 20) + r.rank);
    Tensor sum = r.tensor(x);
    Tensor most = r.tensor(x);
    r.comm.all_reduce(sum, ReduceOp::sum, r.stream);
    r.comm.all_reduce(most, ReduceOp::max, r.stream);
    const std::vector<T> s = r.values<T>(sum);
    const std::vector<T> m = r.values<T>(most);
    const int offset = r.num_ranks * (r.num_ranks - 1) / 2;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += !same(s[i], number<T>(static_cast<int>(i % 20) * r.num_ranks + offset));
      wrong += !same(m[i], number<T>(static_cast<int>(i % 20) + r.num_ranks - 1));
    }
    CHECK(wrong == 0);
  }
}

template <typename T>
void check_shards(Bench& r) {
  const auto n = static_cast<std::size_t>(r.num_ranks);
  for (const std::size_t count : {1UL, 513UL, 70001UL}) {
    std::vector<T> mine(count);
    for (std::size_t i = 0; i < count; ++i) mine[i] = number<T>(static_cast<int>(i % 13) + r.rank);
    Tensor shard = r.tensor(mine);
    Tensor full = r.tensor(std::vector<T>(count * n));
    r.comm.all_gather(shard, full, r.stream);
    const std::vector<T> all = r.values<T>(full);
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < all.size(); ++k) {
      wrong += !same(all[k], number<T>(static_cast<int>(k % count % 13) + static_cast<int>(k / count)));
    }
    CHECK(wrong == 0);
    r.comm.reduce_scatter(full, shard, r.stream);
    const std::vector<T> sum = r.values<T>(shard);
    for (std::size_t i = 0; i < count; ++i) {
      wrong += !same(sum[i], number<T>((static_cast<int>(i % 13) + r.rank) * r.num_ranks));
    }
    CHECK(wrong == 0);
    r.comm.broadcast(shard, r.num_ranks - 1, r.stream);
    CHECK(same(r.values<T>(shard).front(), number<T>((r.num_ranks - 1) * r.num_ranks)));
  }
}

// All send to both neighbours before they receive, as stages of 1F1B do: a send that held up the stream would hang.
// Two messages of a channel arrive in order. Even tags go up, odd ones down.
void check_transfers(Bench& r) {
  if (r.num_ranks == 1) return;
  const int next = (r.rank + 1) % r.num_ranks;
  const int previous = (r.rank + r.num_ranks - 1) % r.num_ranks;
  for (const std::size_t count : {3UL, 4000000UL}) {
    Tensor up = r.tensor(std::vector<float>(count, static_cast<float>(r.rank)));
    Tensor down = r.tensor(std::vector<float>(count, static_cast<float>(r.rank + 100)));
    Tensor from_below = r.tensor(std::vector<float>(count));
    Tensor from_above = r.tensor(std::vector<float>(count));
    for (int round = 0; round < 3; ++round) {
      Transfer send_up, send_down, receive_up, receive_down;
      r.comm.send(up, next, 2, send_up, r.stream);
      r.comm.send(down, previous, 3, send_down, r.stream);
      r.comm.receive(from_below, previous, 2, receive_up, r.stream);
      r.comm.receive(from_above, next, 3, receive_down, r.stream);
      for (Transfer* transfer : {&receive_down, &receive_up, &send_down, &send_up}) r.comm.wait(*transfer, r.stream);
      r.comm.wait(send_up, r.stream);  // once more: nothing to do
      CHECK(r.values<float>(from_below).back() == static_cast<float>(previous));
      CHECK(r.values<float>(from_above).back() == static_cast<float>(next + 100));
    }
    Transfer first, second, receive_first, receive_second;
    r.comm.receive(from_below, previous, 0, receive_first, r.stream);
    r.comm.receive(from_above, previous, 0, receive_second, r.stream);
    r.comm.send(up, next, 0, first, r.stream);
    r.comm.send(down, next, 0, second, r.stream);
    for (Transfer* transfer : {&receive_first, &receive_second, &first, &second}) r.comm.wait(*transfer, r.stream);
    CHECK(r.values<float>(from_below).front() == static_cast<float>(previous));
    CHECK(r.values<float>(from_above).front() == static_cast<float>(previous + 100));
  }
}

void check_all(Bench& r) {
  check_reductions<float>(r);
  check_reductions<double>(r);
  check_reductions<std::int32_t>(r);
  check_reductions<BFloat16>(r);
  check_reductions<Float16>(r);
  check_shards<float>(r);
  check_shards<BFloat16>(r);
  check_shards<Float16>(r);
  check_transfers(r);
  CHECK_NOTHROW(r.comm.check_async());
  CHECK(r.comm.trouble(60).empty());
}

}  // namespace

TEST_CASE("MPI reduces, gathers and scatters 16-bit floats", "[comm][sanitize]") {
  const auto comm = make_mpi_communicator(Axis::world, MPI_COMM_WORLD);
  Bench r(*comm, cpu);
  check_reductions<BFloat16>(r);
  check_reductions<Float16>(r);
  check_shards<BFloat16>(r);
  check_shards<Float16>(r);
}

TEST_CASE("a 16-bit sum is rounded to the nearest", "[comm][sanitize]") {
  const auto comm = make_mpi_communicator(Axis::world, MPI_COMM_WORLD);
  Bench r(*comm, cpu);
  if (r.num_ranks != 2) return;
  // 256 + 3 lies between 258 and 260, 256 + 1 between 256 and 258: ties go to the even mantissa.
  Tensor x =
      r.tensor(std::vector<BFloat16>{BFloat16(r.rank == 0 ? 256.0F : 3.0F), BFloat16(r.rank == 0 ? 256.0F : 1.0F)});
  r.comm.all_reduce(x, ReduceOp::sum, r.stream);
  const auto sum = r.values<BFloat16>(x);
  CHECK(static_cast<float>(sum[0]) == 260.0F);
  CHECK(static_cast<float>(sum[1]) == 256.0F);
}

TEST_CASE("staging in pieces, on the CPU", "[comm][sanitize]") {
  const std::int64_t piece_bytes = GENERATE(std::int64_t{1000}, std::int64_t{1} << 20);
  const auto comm = make_staged_communicator(
      Axis::pipeline, MPI_COMM_WORLD,
      {.piece_bytes = piece_bytes, .slot_bytes = 100, .num_slots = 2, .host = HostMemory::pageable});
  Bench r(*comm, cpu);
  check_all(r);
}

TEST_CASE("lists of cores", "[comm]") {
  CHECK(parse_cpu_list("0-3,8\n") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse_cpu_list("5") == std::vector<int>{5});
  CHECK(parse_cpu_list("").empty());
  CHECK(parse_cpu_list("3-1").empty());
  CHECK(parse_cpu_list("0-999999999").empty());
  CHECK(parse_cpu_list("1;2").empty());
}

TEST_CASE("collectives and transfers between GPUs", "[gpu-comm]") {
  const HostGroup world(MPI_COMM_WORLD);
  if (world.min(num_visible_gpus()) == 0) {
    show_skip("no GPU");
    return;
  }
  const GpuTopology gpus = discover_gpus(world, discover_topology(world));
  const Transport transport = GENERATE(Transport::staged, Transport::nccl);
  CAPTURE(transport_name(transport), gpus.reason);
  if (transport == Transport::nccl && gpus.transport != Transport::nccl) {
    show_skip("ranks share a GPU: no NCCL");
    return;
  }
  const Device gpu{DeviceKind::cuda, gpus.place.ordinal};
  const GridShape shape{.data = 1, .tensor = 1, .pipeline = world.num_ranks()};
  GridCommunicators grid =
      make_gpu_communicators(MPI_COMM_WORLD, shape, gpu, transport, {.num_chunks = 2, .message_bytes = 16'000'000});
  CHECK(grid.world->transport() == (world.num_ranks() == 1 ? "local" : transport_name(transport)));
  CHECK(grid.tensor->transport() == "local");
  {
    Bench r(*grid.pipeline, gpu);
    check_all(r);
  }
  {
    // Bitwise equal on all ranks, and again in the same order.
    Bench r(*grid.world, gpu);
    std::vector<float> x(1 << 20);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = 1.0F / static_cast<float>(i + 3 + 7 * static_cast<std::size_t>(r.rank));
    Tensor a = r.tensor(x);
    Tensor b = r.tensor(x);
    r.comm.all_reduce(a, ReduceOp::sum, r.stream);
    r.comm.all_reduce(b, ReduceOp::sum, r.stream);
    const auto first = r.values<float>(a);
    std::vector<float> of_root = first;
    world.broadcast(of_root.data(), static_cast<std::int64_t>(of_root.size() * sizeof(float)), 0);
    CHECK(std::memcmp(first.data(), of_root.data(), first.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(first.data(), r.values<float>(b).data(), first.size() * sizeof(float)) == 0);
  }
}
