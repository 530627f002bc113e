// What must be equal for a checkpoint to fit a model.
#pragma once

#include <string>
#include <vector>

#include "potato/config/config.hpp"

namespace potato {

// JSON of the model's sizes.
std::string model_signature(const ModelConfig& model);

// One problem for each key in which the checkpoint at `path` differs from this run.
std::vector<std::string> signature_differences(const std::string& stored, const std::string& wanted,
                                               const std::string& path);

}  // namespace potato
