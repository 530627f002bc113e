// `potatochat CONFIG`: train.
#pragma once

#include <string>

#include "potato/comm/host_group.hpp"
#include "potato/config/config.hpp"

namespace potato {

// Collective over `world`. Returns the exit code: 0, or 1 where a checkpoint could not be saved. Throws ConfigError
// (the same on all ranks) for the user's mistakes.
int train_mode(const Config& config, const HostGroup& world, const std::string& command_line,
               const std::string& config_given);

}  // namespace potato
