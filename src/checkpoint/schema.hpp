// What stands where in the file, shared by saving and loading.
#pragma once

#include <map>
#include <set>
#include <string>

#include "h5.hpp"
#include "potato/checkpoint/checkpoint.hpp"

namespace potato {

inline constexpr int checkpoint_format_version = 2;
inline constexpr const char* checkpoint_file_name = "checkpoint.h5";

// Logical tensors by name, with their shapes.
using TensorShapes = std::map<std::string, Shape>;

// All logical tensors of all ranks. Collective.
TensorShapes gather_shapes(const HostGroup& group, std::span<const TensorGroup> groups);

hid_t memory_type(DType dtype);

// The part of a dataset that a piece covers.
H5Space piece_selection(hid_t dataset, const Piece& piece);

// Calls body(dataset, memory space, file space, values) for each piece of each group; for those that other ranks write
// only with `all`. Not collective.
template <typename Body>
void for_each_piece(hid_t file, std::span<const TensorGroup> groups, bool all, const Body& body) {
  for (const TensorGroup& group : groups) {
    for (const StoredPiece& stored : group.pieces) {
      if (!all && !stored.is_written) continue;
      const std::string name = group.prefix + "/" + stored.piece.name;
      const H5Dataset dataset(PC_H5(H5Dopen2(file, name.c_str(), H5P_DEFAULT)));
      const H5Space in_file = piece_selection(dataset.get(), stored.piece);
      const auto num_elems = static_cast<hsize_t>(stored.piece.num_elems());
      const H5Space in_memory(PC_H5(H5Screate_simple(1, &num_elems, nullptr)));
      body(dataset.get(), in_memory.get(), in_file.get(), stored.values);
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
                                          {"dtype", &CheckpointInfo::dtype},
                                          {"loss_scaler", &CheckpointInfo::loss_scaler}};
inline constexpr InfoNumber info_numbers[] = {{"step", &CheckpointInfo::step},
                                              {"updates", &CheckpointInfo::updates},
                                              {"next_sample", &CheckpointInfo::next_sample},
                                              {"tokens", &CheckpointInfo::tokens}};

}  // namespace potato
