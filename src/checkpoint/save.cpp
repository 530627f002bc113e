#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "potato/core/allocations.hpp"
#include "schema.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

void sync_path(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw IoError(cat("cannot open ", path.string(), ": ", std::strerror(errno)));
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  if (result != 0) throw IoError(cat("cannot sync ", path.string(), ": ", std::strerror(error)));
}

// case-30: asked of the file system itself.
void check_free_space(const fs::path& folder, std::int64_t needed_bytes) {
  struct statvfs facts {};
  if (statvfs(folder.c_str(), &facts) != 0) {
    throw IoError(cat("cannot ask for the free space of ", folder.string(), ": ", std::strerror(errno)));
  }
  const auto free_bytes = static_cast<std::int64_t>(facts.f_bavail) * static_cast<std::int64_t>(facts.f_frsize);
  if (free_bytes < needed_bytes) {
    throw IoError(
        cat("the disk of ", folder.string(), " is too full: ", needed_bytes, " bytes needed, ", free_bytes, " free"));
  }
}

// Takes the space of the file's first bytes, so that no later write fails for a full disk or a quota: HDF5 1.10 does
// not survive a close that fails. Where the file system cannot do that, check_free_space has to be enough.
void reserve_space(const fs::path& path, std::int64_t num_bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) throw IoError(cat("cannot open ", path.string(), ": ", std::strerror(errno)));
  const int error = fallocate(fd, 0, 0, num_bytes) == 0 ? 0 : errno;
  close(fd);
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) {
    throw IoError(cat("cannot reserve ", num_bytes, " bytes for ", path.string(), ": ", std::strerror(error)));
  }
}

void write_text(hid_t parent, const char* name, const std::string& text) {
  const H5Type type(PC_H5(H5Tcopy(H5T_C_S1)));
  PC_H5(H5Tset_size(type.get(), text.empty() ? 1 : text.size()));
  PC_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  const H5Space space(PC_H5(H5Screate(H5S_SCALAR)));
  const H5Dataset dataset(
      PC_H5(H5Dcreate2(parent, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)));
  PC_H5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()));
}

void write_number(hid_t parent, const char* name, std::int64_t value) {
  const H5Space space(PC_H5(H5Screate(H5S_SCALAR)));
  const H5Attribute attribute(PC_H5(H5Acreate2(parent, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT)));
  PC_H5(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value));
}

// Rank 0 alone lays the file out: all datasets, allocated and unfilled, and the texts.
void create_file(const fs::path& path, const TensorShapes& shapes, std::span<const TensorGroup> groups,
                 const CheckpointInfo& info) {
  const H5Properties access(PC_H5(H5Pcreate(H5P_FILE_ACCESS)));
  PC_H5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST));
  H5File file(PC_H5(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get())));
  write_number(file.get(), "format_version", checkpoint_format_version);
  for (const auto& [name, field] : info_numbers) write_number(file.get(), name, info.*field);
  {
    const H5Group texts(PC_H5(H5Gcreate2(file.get(), "info", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)));
    for (const auto& [name, field] : info_texts) write_text(texts.get(), name, info.*field);
  }
  const H5Properties links(PC_H5(H5Pcreate(H5P_LINK_CREATE)));
  PC_H5(H5Pset_create_intermediate_group(links.get(), 1));
  const H5Properties layout(PC_H5(H5Pcreate(H5P_DATASET_CREATE)));
  PC_H5(H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER));
  PC_H5(H5Pset_alloc_time(layout.get(), H5D_ALLOC_TIME_EARLY));
  for (const TensorGroup& group : groups) {
    const hid_t type = group.dtype == DType::f64 ? H5T_IEEE_F64LE : H5T_IEEE_F32LE;
    for (const auto& [name, shape] : shapes) {
      const std::array<hsize_t, 2> dims = {static_cast<hsize_t>(shape[0]), static_cast<hsize_t>(shape[1])};
      const H5Space space(PC_H5(H5Screate_simple(shape.num_dims(), dims.data(), nullptr)));
      const std::string full_name = group.prefix + "/" + name;
      const H5Dataset dataset(
          PC_H5(H5Dcreate2(file.get(), full_name.c_str(), type, space.get(), links.get(), layout.get(), H5P_DEFAULT)));
    }
  }
  PC_H5(H5Fclose(file.release()));
}

// Independent transfers of this rank's pieces.
void write_pieces(hid_t file, std::span<const TensorGroup> groups) {
  for_each_piece(file, groups, false, [](hid_t dataset, hid_t memory, hid_t place, const TensorView& values) {
    PC_H5(H5Dwrite(dataset, memory_type(values.dtype), memory, place, H5P_DEFAULT, values.data));
  });
}

H5File open_parallel(const fs::path& path, MPI_Comm comm) {
  const H5Properties access(PC_H5(H5Pcreate(H5P_FILE_ACCESS)));
  PC_H5(H5Pset_fapl_mpio(access.get(), comm, MPI_INFO_NULL));
  return H5File(PC_H5(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get())));
}

// Runs `work` and brings its failure to all ranks as a SaveError. Collective.
template <typename Work>
void save_agreed(const HostGroup& group, const Work& work) {
  std::vector<std::string> problems;
  try {
    work();
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
  }
  try {
    group.agree(problems);
  } catch (const ConfigError& error) {
    throw SaveError(error.what());
  }
}

void replace_text_file(const fs::path& path, const std::string& text) {
  const fs::path beside = path.string() + ".tmp";
  {
    std::ofstream out(beside);
    out << text << '\n';
    out.flush();
    if (!out) throw IoError(cat("cannot write ", beside.string(), ": ", std::strerror(errno)));
  }
  sync_path(beside);
  fs::rename(beside, path);
}

// The written folder takes its final name. A folder of the same step, from before a resume, changes places with it in
// one move, so that a kill at any moment leaves one of the two.
void commit(const fs::path& folder, const fs::path& temporary, const fs::path& final_path) {
  sync_path(temporary / checkpoint_file_name);
  sync_path(temporary);
  if (fs::exists(final_path)) {
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
      throw IoError(cat("cannot replace ", final_path.string(), ": ", std::strerror(errno)));
    }
  } else {
    fs::rename(temporary, final_path);
  }
  sync_path(folder);
  replace_text_file(folder / "latest", final_path.filename().string());
  sync_path(folder);
  fs::remove_all(temporary);
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const HostGroup& group, std::span<const TensorGroup> groups,
                            const CheckpointInfo& info) {
  const LibraryScope library;
  silence_h5();
  std::array<char, 24> name{};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(info.step));
  const fs::path final_path = fs::path(folder) / name.data();
  const fs::path temporary = final_path.string() + ".tmp";
  const fs::path file_path = temporary / checkpoint_file_name;
  const bool is_root = group.rank() == 0;
  const TensorShapes shapes = gather_shapes(group, groups);
  std::int64_t num_elems = 0;
  for (const auto& [tensor, shape] : shapes) num_elems += shape.num_elems();
  for (const TensorGroup& tensors : groups) {
    double num_own = 0;
    for (const StoredPiece& stored : tensors.pieces) {
      if (stored.is_written) num_own += static_cast<double>(stored.piece.num_elems());
    }
    const double num_written = group.sum(num_own);
    PC_CHECK(num_written == static_cast<double>(num_elems), tensors.prefix, ": owners write ", num_written, " of ",
             num_elems, " elements");
  }
  try {
    save_agreed(group, [&] {
      if (!is_root) return;
      std::int64_t needed_bytes = 1 << 20;
      for (const TensorGroup& tensors : groups) {
        for (const auto& [tensor, shape] : shapes) needed_bytes += shape.num_elems() * dtype_bytes(tensors.dtype);
      }
      fs::create_directories(folder);
      check_free_space(folder, needed_bytes);
      fs::remove_all(temporary);
      fs::create_directory(temporary);
      // First for all of it, under another name, since HDF5 makes its file anew.
      reserve_space(temporary / "reserved", needed_bytes);
      fs::remove(temporary / "reserved");
      create_file(file_path, shapes, groups, info);
      reserve_space(file_path, static_cast<std::int64_t>(fs::file_size(file_path)));
    });
    H5File file;
    save_agreed(group, [&] { file = open_parallel(file_path, group.comm()); });
    save_agreed(group, [&] { write_pieces(file.get(), groups); });
    // The flush reaches the disks of all hosts; the sync before the commit only that of rank 0.
    save_agreed(group, [&] { PC_H5(H5Fflush(file.get(), H5F_SCOPE_GLOBAL)); });
    save_agreed(group, [&] { PC_H5(H5Fclose(file.release())); });
    save_agreed(group, [&] {
      if (is_root) commit(folder, temporary, final_path);
    });
  } catch (const SaveError&) {
    std::error_code ignored;
    if (is_root) fs::remove_all(temporary, ignored);
    throw;
  }
  return final_path.string();
}

}  // namespace potato
