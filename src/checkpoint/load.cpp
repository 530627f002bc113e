#include <algorithm>
#include <array>
#include <filesystem>

#include "potato/core/allocations.hpp"
#include "schema.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

H5File open_to_read(const std::string& path) {
  silence_h5();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) throw ConfigError(cat("checkpoint ", path, " does not exist"));
  try {
    return H5File(PC_H5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)));
  } catch (const H5Error& failure) {
    throw ConfigError(cat("checkpoint ", path, " cannot be read, it is damaged or no HDF5 file: ", failure.what()));
  }
}

std::string read_text(hid_t parent, const std::string& name) {
  const H5Dataset dataset(PC_H5(H5Dopen2(parent, name.c_str(), H5P_DEFAULT)));
  const H5Type type(PC_H5(H5Dget_type(dataset.get())));
  std::string text(H5Tget_size(type.get()), '\0');
  PC_H5(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()));
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::int64_t read_number(hid_t parent, const char* name) {
  const H5Attribute attribute(PC_H5(H5Aopen(parent, name, H5P_DEFAULT)));
  std::int64_t value = 0;
  PC_H5(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value));
  return value;
}

herr_t collect_name(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<std::set<std::string>*>(names)->insert(name);
  return 0;
}

std::set<std::string> names_under(hid_t file, const std::string& prefix) {
  std::set<std::string> names;
  std::string so_far;
  // Every part of the path must be there before it may be opened.
  for (std::size_t begin = 1; begin <= prefix.size();) {
    const std::size_t end = std::min(prefix.find('/', begin), prefix.size());
    so_far = prefix.substr(0, end);
    if (H5Lexists(file, so_far.c_str(), H5P_DEFAULT) <= 0) return names;
    begin = end + 1;
  }
  const H5Group group(PC_H5(H5Gopen2(file, prefix.c_str(), H5P_DEFAULT)));
  PC_H5(H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_name, &names));
  return names;
}

Shape shape_of(hid_t dataset) {
  const H5Space space(PC_H5(H5Dget_space(dataset)));
  const int num_dims = PC_H5(H5Sget_simple_extent_ndims(space.get()));
  std::array<hsize_t, H5S_MAX_RANK> dims{};
  PC_H5(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr));
  if (num_dims == 1) return {static_cast<std::int64_t>(dims[0])};
  if (num_dims == 2) return {static_cast<std::int64_t>(dims[0]), static_cast<std::int64_t>(dims[1])};
  return {};
}

// Names in the file against names wanted by any rank; shapes too.
std::vector<std::string> schema_problems(hid_t file, const std::string& path, const TensorShapes& wanted,
                                         std::span<const TensorGroup> groups) {
  std::vector<std::string> problems;
  for (const TensorGroup& group : groups) {
    const std::set<std::string> present = names_under(file, group.prefix);
    for (const auto& [name, shape] : wanted) {
      const std::string full_name = group.prefix + "/" + name;
      if (!present.contains(name)) {
        problems.push_back(cat("checkpoint ", path, ": dataset ", full_name, " is missing"));
        continue;
      }
      const H5Dataset dataset(PC_H5(H5Dopen2(file, full_name.c_str(), H5P_DEFAULT)));
      const Shape stored = shape_of(dataset.get());
      if (!(stored == shape)) {
        problems.push_back(
            cat("checkpoint ", path, ": dataset ", full_name, " is ", stored, ", the model needs ", shape));
      }
    }
    for (const std::string& name : present) {
      if (!wanted.contains(name)) {
        problems.push_back(
            cat("checkpoint ", path, ": dataset ", group.prefix, "/", name, " belongs to no tensor of the model"));
      }
    }
  }
  return problems;
}

void read_pieces(hid_t file, const ParameterRegistry& registry, std::span<const TensorGroup> groups) {
  for (const TensorGroup& group : groups) {
    for (const Parameter& parameter : registry.parameters()) {
      for (const Piece& piece : parameter.spec.pieces) {
        const std::string name = group.prefix + "/" + piece.name;
        const H5Dataset dataset(PC_H5(H5Dopen2(file, name.c_str(), H5P_DEFAULT)));
        const H5Space in_file = piece_selection(dataset.get(), piece);
        const auto num_elems = static_cast<hsize_t>(piece.num_elems());
        const H5Space in_memory(PC_H5(H5Screate_simple(1, &num_elems, nullptr)));
        const TensorView values = ParameterRegistry::piece_view(parameter, piece, group.flat);
        PC_H5(H5Dread(dataset.get(), memory_type(values.dtype), in_memory.get(), in_file.get(), H5P_DEFAULT,
                      values.data));
      }
    }
  }
}

// Failures of HDF5 while reading are the file's, hence the user's to mend.
template <typename Work>
void read_agreed(const HostGroup& group, const std::string& path, const Work& work) {
  group.run_agreed([&] {
    try {
      work();
    } catch (const H5Error& failure) {
      throw ConfigError(cat("checkpoint ", path, " cannot be read: ", failure.what()));
    }
  });
}

}  // namespace

CheckpointInfo read_checkpoint_info(const std::string& path, const HostGroup& group) {
  const LibraryScope library;
  CheckpointInfo info;
  read_agreed(group, path, [&] {
    if (group.rank() != 0) return;
    const H5File file = open_to_read(path);
    const std::int64_t format = read_number(file.get(), "format_version");
    if (format != checkpoint_format_version) {
      throw ConfigError(
          cat("checkpoint ", path, " has format ", format, ", this program reads format ", checkpoint_format_version));
    }
    for (const auto& [name, field] : info_numbers) info.*field = read_number(file.get(), name);
    for (const auto& [name, field] : info_texts) info.*field = read_text(file.get(), cat("info/", name));
  });
  for (const auto& number : info_numbers) group.broadcast(&(info.*number.field), sizeof(std::int64_t), 0);
  for (const auto& text : info_texts) info.*text.field = group.broadcast(info.*text.field, 0);
  return info;
}

void load_checkpoint(const std::string& path, const HostGroup& group, const ParameterRegistry& registry,
                     std::span<const TensorGroup> groups) {
  const LibraryScope library;
  const TensorShapes wanted = gather_shapes(group, registry);
  read_agreed(group, path, [&] {
    if (group.rank() != 0) return;
    const H5File file = open_to_read(path);
    const std::vector<std::string> problems = schema_problems(file.get(), path, wanted, groups);
    if (!problems.empty()) throw ConfigError(problems);
  });
  read_agreed(group, path, [&] {
    const H5File file = open_to_read(path);
    read_pieces(file.get(), registry, groups);
  });
}

}  // namespace potato
