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

// Calls body(dataset, memory space, file space, values) for each piece of each group; the pieces of replicas only with
// `replicas`. Not collective.
template <typename Body>
void for_each_piece(hid_t file, const ParameterRegistry& registry, std::span<const TensorGroup> groups, bool replicas,
                    const Body& body) {
  for (const TensorGroup& group : groups) {
    for (const Parameter& parameter : registry.parameters()) {
      if (!replicas && !parameter.spec.is_owner) continue;
      for (const Piece& piece : parameter.spec.pieces) {
        const std::string name = group.prefix + "/" + piece.name;
        const H5Dataset dataset(PC_H5(H5Dopen2(file, name.c_str(), H5P_DEFAULT)));
        const H5Space in_file = piece_selection(dataset.get(), piece);
        const auto num_elems = static_cast<hsize_t>(piece.num_elems());
        const H5Space in_memory(PC_H5(H5Screate_simple(1, &num_elems, nullptr)));
        body(dataset.get(), in_memory.get(), in_file.get(),
             ParameterRegistry::piece_view(parameter, piece, group.flat));
      }
    }
  }
}

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
