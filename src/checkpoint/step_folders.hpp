// The committed step folders of a folder of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace potato {

// The step that a folder's name stands for; −1 where it is no step_name().
std::int64_t step_of(const std::string& name);

// All steps with a folder, in no order; those that lack files too. None where `folder` cannot be read.
std::vector<std::int64_t> steps_in(const std::string& folder);

}  // namespace potato
