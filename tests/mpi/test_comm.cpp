// Collectives on inputs that sum exactly, so that results compare with ==.
#include <mpi.h>

#include <algorithm>
#include <vector>

#include "potato/comm/host_group.hpp"
#include "potato/comm/mpi_communicator.hpp"
#include "potato/core/clock.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

const Device cpu{DeviceKind::cpu, 0};

struct Ranks {
  std::unique_ptr<Communicator> comm = make_mpi_communicator(Axis::world, MPI_COMM_WORLD);
  Stream stream{cpu, StreamOptions{.name = "comm", .on_error = {}}};
  int rank = comm->rank();
  int num_ranks = comm->num_ranks();

  template <typename T>
  static TensorView view(std::vector<T>& values) {
    return {values.data(), dtype_of<T>, {static_cast<std::int64_t>(values.size())}, cpu};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("all_reduce sums and finds the largest", "[comm][sanitize]", float, double, std::int32_t) {
  Ranks r;
  for (const std::size_t count : {1UL, 7UL, 1000UL, 100003UL}) {
    std::vector<TestType> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<TestType>(static_cast<int>(i % 50) + r.rank);
    std::vector<TestType> y = x;
    r.comm->all_reduce(Ranks::view(x), ReduceOp::sum, r.stream);
    r.comm->all_reduce(Ranks::view(y), ReduceOp::max, r.stream);
    r.stream.synchronize();
    const int offset = r.num_ranks * (r.num_ranks - 1) / 2;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += x[i] != static_cast<TestType>(static_cast<int>(i % 50) * r.num_ranks + offset);
      wrong += y[i] != static_cast<TestType>(static_cast<int>(i % 50) + r.num_ranks - 1);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("all_gather and reduce_scatter are each other's transpose", "[comm][sanitize]") {
  Ranks r;
  const std::size_t count = 513;
  std::vector<float> shard(count, static_cast<float>(r.rank + 1));
  std::vector<float> full(count * static_cast<std::size_t>(r.num_ranks));
  r.comm->all_gather(Ranks::view(shard), Ranks::view(full), r.stream);
  r.stream.synchronize();
  for (int rank = 0; rank < r.num_ranks; ++rank) {
    CHECK(full[static_cast<std::size_t>(rank) * count] == static_cast<float>(rank + 1));
    CHECK(full[static_cast<std::size_t>(rank + 1) * count - 1] == static_cast<float>(rank + 1));
  }
  r.comm->reduce_scatter(Ranks::view(full), Ranks::view(shard), r.stream);
  r.stream.synchronize();
  CHECK(shard.front() == static_cast<float>((r.rank + 1) * r.num_ranks));
  CHECK(shard.back() == static_cast<float>((r.rank + 1) * r.num_ranks));
}

TEMPLATE_TEST_CASE("a shard may be its own place in the whole", "[comm][sanitize]", float, double, std::int32_t) {
  Ranks r;
  for (const std::size_t count : {1UL, 64UL, 4099UL, 100003UL}) {
    std::vector<TestType> full(count * static_cast<std::size_t>(r.num_ranks));
    for (std::size_t i = 0; i < full.size(); ++i) full[i] = static_cast<TestType>(static_cast<int>(i % 97) + r.rank);
    std::vector<TestType> summed = full;
    r.comm->all_reduce(Ranks::view(summed), ReduceOp::sum, r.stream);
    const TensorView own =
        Ranks::view(full).rows(r.rank * static_cast<std::int64_t>(count), static_cast<std::int64_t>(count));
    r.comm->reduce_scatter(Ranks::view(full), own, r.stream);
    r.stream.synchronize();
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r.rank) * count);
    CHECK(std::equal(own.as<TestType>(), own.as<TestType>() + count, summed.begin() + begin));
    // The other places must come from the other ranks.
    for (std::size_t i = 0; i < full.size(); ++i) {
      if (i / count != static_cast<std::size_t>(r.rank)) full[i] = static_cast<TestType>(-1);
    }
    r.comm->all_gather(own, Ranks::view(full), r.stream);
    r.stream.synchronize();
    CHECK(full == summed);
    if (count < 2 || r.num_ranks == 1) continue;
    const TensorView shifted = Ranks::view(full).rows(1, static_cast<std::int64_t>(count));
    CHECK_THROWS_AS(r.comm->all_gather(shifted, Ranks::view(full), r.stream), Error);
    CHECK_THROWS_AS(r.comm->reduce_scatter(Ranks::view(full), shifted, r.stream), Error);
  }
}

TEST_CASE("a slow link takes its time and changes no result", "[comm][sanitize]") {
  Stream stream(cpu, StreamOptions{.name = "comm", .on_error = {}});
  const auto slow = make_mpi_communicator(Axis::data, MPI_COMM_WORLD, {0.01});
  std::vector<float> x(100000, static_cast<float>(slow->rank() + 1));
  const double start_s = now_s();
  slow->all_reduce(Ranks::view(x), ReduceOp::sum, stream);
  stream.synchronize();
  const double n = slow->num_ranks();
  CHECK(now_s() - start_s >= 2 * (n - 1) / n * 400000 / 0.01e9);
  CHECK(x.back() == static_cast<float>(n * (n + 1) / 2));
}

TEST_CASE("transfers of one channel arrive in order", "[comm][sanitize]") {
  Ranks r;
  const int next = (r.rank + 1) % r.num_ranks;
  const int previous = (r.rank + r.num_ranks - 1) % r.num_ranks;
  for (const std::size_t count : {3UL, 50000UL}) {  // eager and rendezvous
    std::vector<double> a(count, r.rank);
    std::vector<double> b(count, r.rank + 100);
    std::vector<double> x(count);
    std::vector<double> y(count);
    Transfer send_a;
    Transfer send_b;
    Transfer receive_x;
    Transfer receive_y;
    r.comm->receive(Ranks::view(x), previous, 3, receive_x, r.stream);
    r.comm->receive(Ranks::view(y), previous, 3, receive_y, r.stream);
    r.comm->send(Ranks::view(a), next, 3, send_a, r.stream);
    r.comm->send(Ranks::view(b), next, 3, send_b, r.stream);
    for (Transfer* transfer : {&receive_x, &receive_y, &send_a, &send_b}) r.comm->wait(*transfer, r.stream);
    r.comm->wait(send_a, r.stream);  // once more: nothing to do
    r.stream.synchronize();
    CHECK(x.back() == previous);
    CHECK(y.back() == previous + 100);
  }
}

TEST_CASE("a mistake on one rank reaches all, each text once", "[comm][sanitize]") {
  const HostGroup world(MPI_COMM_WORLD);
  const bool last = world.rank() == world.num_ranks() - 1;
  world.agree({});
  try {
    world.agree(last ? std::vector<std::string>{"disk", "data"} : std::vector<std::string>{});
    FAIL("no error");
  } catch (const ConfigError& error) {
    CHECK(error.problems() == std::vector<std::string>{"disk", "data"});
  }
  try {
    world.run_agreed([] { throw IoError("the same everywhere"); });
    FAIL("no error");
  } catch (const ConfigError& error) {
    CHECK(error.problems().size() == 1);
  }
}

TEST_CASE("comm.check names the first difference between ranks, on all of them", "[comm][sanitize]") {
  Ranks r;
  if (r.num_ranks == 1) return;
  const bool last = r.rank == r.num_ranks - 1;
  std::vector<float> x(100);
  std::vector<double> y(100);
  const auto problem = [&](const auto& collective) {
    r.comm->set_check(std::make_unique<CollectiveCheck>(MPI_COMM_WORLD, "world", nullptr));
    r.comm->all_reduce(Ranks::view(x), ReduceOp::sum, r.stream);
    r.stream.synchronize();  // nothing to complain of
    std::string text;
    Stream stream{cpu, StreamOptions{.name = "comm", .on_error = {}}};
    try {
      collective(stream);
      stream.synchronize();
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK_THAT(text, ContainsSubstring("collective 2 on axis world differs: rank 0 does all-reduce of 100 fp32"));
    return text;
  };
  const std::string name = cat("rank ", r.num_ranks - 1, " does ");
  CHECK_THAT(problem([&](Stream& stream) {
               r.comm->all_reduce(Ranks::view(x).rows(0, last ? 99 : 100), ReduceOp::sum, stream);
             }),
             ContainsSubstring(name + "all-reduce of 99 fp32"));
  CHECK_THAT(problem([&](Stream& stream) {
               r.comm->all_reduce(last ? Ranks::view(y) : Ranks::view(x), ReduceOp::sum, stream);
             }),
             ContainsSubstring(name + "all-reduce of 100 fp64"));
  CHECK_THAT(problem([&](Stream& stream) {
               if (last) {
                 r.comm->broadcast(Ranks::view(x), 0, stream);
               } else {
                 r.comm->all_reduce(Ranks::view(x), ReduceOp::sum, stream);
               }
             }),
             ContainsSubstring(name + "broadcast of 100 fp32"));
}
