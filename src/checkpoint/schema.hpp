// What stands where in the file, shared by saving and loading.
#pragma once

#include <map>
#include <set>
#include <string>

#include "h5.hpp"
#include "potato/checkpoint/checkpoint.hpp"

namespace potato {

inline constexpr int checkpoint_format_version = 1;
inline constexpr const char* checkpoint_file_name = "checkpoint.h5";

// Logical tensors by name, with their shapes.
using TensorShapes = std::map<std::string, Shape>;

// All logical tensors of all ranks. Collective.
TensorShapes gather_shapes(const HostGroup& group, const ParameterRegistry& registry);

hid_t memory_type(DType dtype);

// The part of a dataset that a piece covers.
H5Space piece_selection(hid_t dataset, const Piece& piece);

struct InfoText {
  const char* name;
  std::string CheckpointInfo::*field;
};
struct InfoNumber {
  const char* name;
  std::int64_t CheckpointInfo::*field;
};
inline constexpr InfoText info_texts[] = {{"model_signature", &CheckpointInfo::model_signature},
                                          {"config", &CheckpointInfo::config_ini},
                                          {"command_line", &CheckpointInfo::command_line},
                                          {"environment", &CheckpointInfo::environment},
                                          {"grid", &CheckpointInfo::grid},
                                          {"fingerprint", &CheckpointInfo::fingerprint},
                                          {"versions", &CheckpointInfo::versions},
                                          {"dtype", &CheckpointInfo::dtype}};
inline constexpr InfoNumber info_numbers[] = {{"step", &CheckpointInfo::step},
                                              {"next_sample", &CheckpointInfo::next_sample},
                                              {"tokens", &CheckpointInfo::tokens}};

}  // namespace potato
