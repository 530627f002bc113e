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

std::string read_text(hid_t parent, const std::string& path, const std::string& name) {
  const H5Dataset dataset(PC_H5(H5Dopen2(parent, name.c_str(), H5P_DEFAULT)));
  const H5Type type(PC_H5(H5Dget_type(dataset.get())));
  const H5Space space(PC_H5(H5Dget_space(dataset.get())));
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
      H5Sget_simple_extent_npoints(space.get()) != 1) {
    throw ConfigError(cat("checkpoint ", path, ": dataset ", name, " is no text of one fixed length"));
  }
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

herr_t collect_path(hid_t, const char* path, const H5L_info_t*, void* paths) {
  static_cast<std::set<std::string>*>(paths)->insert(cat("/", path));
  return 0;
}

// All groups and datasets of the file.
std::set<std::string> paths_in(hid_t file) {
  std::set<std::string> paths;
  PC_H5(H5Lvisit(file, H5_INDEX_NAME, H5_ITER_INC, collect_path, &paths));
  return paths;
}

// Whether `path` is `ancestor` or lies in it.
bool is_within(const std::string& path, const std::string& ancestor) {
  return (path + "/").starts_with(ancestor + "/");
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

// Everything in the file but /info against what any rank wants; shapes too.
std::vector<std::string> schema_problems(hid_t file, const std::string& path, const TensorShapes& wanted,
                                         std::span<const TensorGroup> groups) {
  std::vector<std::string> problems;
  std::set<std::string> present = paths_in(file);
  for (const TensorGroup& group : groups) {
    for (const auto& [name, shape] : wanted) {
      const std::string full_name = group.prefix + "/" + name;
      if (present.erase(full_name) == 0) {
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
  }
  for (const std::string& name : present) {
    const auto holds_wanted = [&](const TensorGroup& group) { return is_within(group.prefix, name); };
    if (is_within(name, "/info") || std::any_of(groups.begin(), groups.end(), holds_wanted)) continue;
    problems.push_back(cat("checkpoint ", path, ": dataset ", name, " belongs to no tensor of the model"));
  }
  return problems;
}

void read_pieces(hid_t file, std::span<const TensorGroup> groups) {
  for_each_piece(file, groups, true, [](hid_t dataset, hid_t memory, hid_t place, const TensorView& values) {
    PC_H5(H5Dread(dataset, memory_type(values.dtype), memory, place, H5P_DEFAULT, values.data));
  });
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
    for (const auto& [name, field] : info_texts) info.*field = read_text(file.get(), path, cat("/info/", name));
  });
  for (const auto& number : info_numbers) group.broadcast(&(info.*number.field), sizeof(std::int64_t), 0);
  for (const auto& text : info_texts) info.*text.field = group.broadcast(info.*text.field, 0);
  return info;
}

void load_checkpoint(const std::string& path, const HostGroup& group, std::span<const TensorGroup> groups) {
  const LibraryScope library;
  const TensorShapes wanted = gather_shapes(group, groups);
  read_agreed(group, path, [&] {
    if (group.rank() != 0) return;
    const H5File file = open_to_read(path);
    const std::vector<std::string> problems = schema_problems(file.get(), path, wanted, groups);
    if (!problems.empty()) throw ConfigError(problems);
  });
  read_agreed(group, path, [&] {
    const H5File file = open_to_read(path);
    read_pieces(file.get(), groups);
  });
}

}  // namespace potato
