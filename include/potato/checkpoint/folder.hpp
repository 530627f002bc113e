// The folder of checkpoints, and what is kept of the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/comm/host_group.hpp"

namespace potato {

// "step-00000200": the name of a committed checkpoint. Steps of more than eight digits have longer names.
std::string step_name(std::int64_t step);

// The step folders that `resume` stands for, the one to try first in front: none for "none", and for "latest" where
// nothing was committed yet; all of a folder of checkpoints for "latest", for that folder's path and for a run's; one
// for the path of a step folder or of its manifest. Collective; throws ConfigError on all ranks.
std::vector<std::string> find_checkpoints(const std::string& resume, const std::string& folder, const HostGroup& group);

// Removes what killed saves left in `folder` (step-N.tmp), and says what. Collective.
std::vector<std::string> clean_leftovers(const std::string& folder, const HostGroup& group);

// All environment variables, one a line, sorted; values of names that contain KEY, TOKEN, SECRET or PASSWORD are ***.
std::string masked_environment();

}  // namespace potato
