// potatochat verify: whether checkpoints are as they were written.
#pragma once

#include <string>

#include "potato/comm/host_group.hpp"

namespace potato {

// Verifies the step folder `path`, or all checkpoints of a folder of them or of a run's, with the work split over the
// ranks, and prints a report. Returns the exit code: 0, or 1 where anything is damaged. Collective.
int verify_mode(const std::string& path, const HostGroup& world);

}  // namespace potato
