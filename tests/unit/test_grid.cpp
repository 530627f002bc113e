#include <algorithm>
#include <set>

#include "potato/comm/mpi_session.hpp"
#include "potato/comm/process_grid.hpp"
#include "potato/layers/embedding.hpp"
#include "support/catch.hpp"

using namespace potato;

TEST_CASE("tensor varies fastest, then data, then pipeline", "[grid]") {
  const GridShape shape{2, 2, 2};
  CHECK(grid_coordinates(shape, 1) == GridCoordinates{0, 1, 0});
  CHECK(grid_coordinates(shape, 2) == GridCoordinates{1, 0, 0});
  CHECK(grid_coordinates(shape, 4) == GridCoordinates{0, 0, 1});
  CHECK(grid_group(shape, 3, Axis::tensor) == std::vector<int>{2, 3});
  CHECK(grid_group(shape, 3, Axis::data) == std::vector<int>{1, 3});
  CHECK(grid_group(shape, 3, Axis::pipeline) == std::vector<int>{3, 7});
  CHECK(grid_group(shape, 7, Axis::embedding) == std::vector<int>{3, 7});
}

TEST_CASE("the groups of every axis partition the ranks of any grid", "[grid]") {
  for (std::int64_t data = 1; data <= 4; ++data) {
    for (std::int64_t tensor = 1; tensor <= 4; ++tensor) {
      for (std::int64_t pipeline = 1; pipeline <= 4; ++pipeline) {
        const GridShape shape{data, tensor, pipeline};
        const auto num_ranks = static_cast<int>(data * tensor * pipeline);
        for (const Axis axis : {Axis::data, Axis::tensor, Axis::pipeline, Axis::embedding, Axis::world}) {
          std::set<int> covered;
          for (int rank = 0; rank < num_ranks; ++rank) {
            CHECK(grid_rank(shape, grid_coordinates(shape, rank)) == rank);
            const std::vector<int> group = grid_group(shape, rank, axis);
            CHECK(std::count(group.begin(), group.end(), rank) == 1);
            for (const int member : group) CHECK(grid_group(shape, member, axis) == group);
            covered.insert(group.begin(), group.end());
          }
          CHECK(static_cast<int>(covered.size()) == num_ranks);
        }
      }
    }
  }
}

TEST_CASE("case-11: vocabulary shards cover each token once, padding none", "[grid]") {
  for (const std::int64_t vocab : {2, 61, 257, 1024, 50257}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const VocabularyShard shard = vocabulary_shard(vocab, rank, ranks);
        CHECK(shard.num_rows % 128 == 0);
        if (shard.num_valid > 0) CHECK(shard.first == next);
        next += shard.num_valid;
      }
      CHECK(next == vocab);
    }
  }
}

TEST_CASE("case-20: ranks that believe to be alone are noticed", "[grid]") {
  LaunchFacts facts;
  CHECK(launch_problem(facts, 1).empty());
  facts.launcher = "mpirun";
  facts.launcher_ranks = 8;
  CHECK(launch_problem(facts, 8).empty());
  CHECK(launch_problem(facts, 1).find("8 processes") != std::string::npos);
}
