// A grid of one rank without MPI: its communicators are `dry` groups of one, in which every collective is a no-op.
#pragma once

#include <functional>
#include <memory>

#include "potato/train/engine.hpp"

namespace potato::test {

inline std::unique_ptr<Engine> single_rank_engine(const Config& config) {
  const GridShape shape{1, 1, 1};
  return std::make_unique<Engine>(config, make_dry_communicators(shape, 0), Device{DeviceKind::cpu, 0},
                                  planned_bytes(config, shape, 0), std::function<void(std::exception_ptr)>());
}

}  // namespace potato::test
