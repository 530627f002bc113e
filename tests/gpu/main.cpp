// Main of the GPU tests. Without a GPU it says so and ends with the exit code that CTest takes for a skip.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>

#include "potato/comm/gpu_topology.hpp"

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  if (potato::num_visible_gpus() == 0) {
    std::puts("SKIPPED: no GPU is visible");
    return skipped;
  }
  return Catch::Session().run(argc, argv);
}
