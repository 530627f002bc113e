#include "shard.hpp"

#include <algorithm>
#include <sstream>

#include "potato/core/xxh3.hpp"

namespace potato {

namespace {

hid_t file_type(DType dtype) { return dtype == DType::f64 ? H5T_IEEE_F64LE : H5T_IEEE_F32LE; }

// The dims of a piece's dataset.
std::vector<hsize_t> dims_of(const PlannedPiece& piece) {
  std::vector<hsize_t> dims = {static_cast<hsize_t>(piece.count[0])};
  if (piece.tensor.shape.num_dims() == 2) dims.push_back(static_cast<hsize_t>(piece.count[1]));
  return dims;
}

// Whole rows where they are small enough.
std::vector<hsize_t> chunk_of(const PlannedPiece& piece, std::int64_t chunk_bytes) {
  const std::int64_t most_elems = std::max<std::int64_t>(1, chunk_bytes / dtype_bytes(piece.tensor.dtype));
  const std::int64_t columns = std::min(piece.count[1], most_elems);
  std::vector<hsize_t> dims = dims_of(piece);
  dims[0] = static_cast<hsize_t>(std::clamp<std::int64_t>(most_elems / columns, 1, piece.count[0]));
  if (dims.size() == 2) dims[1] = static_cast<hsize_t>(columns);
  return dims;
}

// Access to a file: HDF5's serial driver for one rank, MPI-IO for several.
H5Properties access_of(const HostGroup& ranks, const SaveOptions& options, bool parallel) {
  constexpr hsize_t aligned_from_bytes = 65536;
  H5Properties access(PC_H5(H5Pcreate(H5P_FILE_ACCESS)));
  PC_H5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST));
  PC_H5(H5Pset_alignment(access.get(), aligned_from_bytes,
                         static_cast<hsize_t>(std::max<std::int64_t>(1, options.alignment_bytes))));
  if (!parallel || ranks.num_ranks() == 1) return access;
  MPI_Info hints = MPI_INFO_NULL;
  MPI_Info_create(&hints);
  for (const auto& [name, value] : options.mpi_io_hints) MPI_Info_set(hints, name.c_str(), value.c_str());
  const herr_t result = H5Pset_fapl_mpio(access.get(), ranks.comm(), hints);
  MPI_Info_free(&hints);
  PC_H5(result);
  return access;
}

}  // namespace

std::string plan_text(const std::vector<PlannedPiece>& pieces) {
  std::ostringstream out;
  for (const PlannedPiece& piece : pieces) {
    const Shape& shape = piece.tensor.shape;
    out << piece.tensor.name << ' ' << static_cast<int>(piece.tensor.dtype) << ' ' << shape.num_dims() << ' '
        << shape[0] << ' ' << piece.tensor.num_columns() << ' ' << piece.begin[0] << ' ' << piece.begin[1] << ' '
        << piece.count[0] << ' ' << piece.count[1] << '\n';
  }
  return out.str();
}

std::vector<PlannedPiece> parse_plan(const std::string& text) {
  std::vector<PlannedPiece> pieces;
  std::istringstream in(text);
  PlannedPiece piece;
  int dtype = 0;
  int num_dims = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  while (in >> piece.tensor.name >> dtype >> num_dims >> rows >> columns >> piece.begin[0] >> piece.begin[1] >>
         piece.count[0] >> piece.count[1]) {
    piece.tensor.dtype = static_cast<DType>(dtype);
    piece.tensor.shape = num_dims == 1 ? Shape{rows} : Shape{rows, columns};
    pieces.push_back(piece);
  }
  return pieces;
}

ShardWriter::ShardWriter(const HostGroup& file_group, const SaveOptions& options,
                         std::vector<std::vector<PlannedPiece>> plans)
    : file_group_(file_group), options_(options), plans_(std::move(plans)) {
  silence_h5();
  for (const auto& plan : plans_) {
    for (const PlannedPiece& piece : plan) num_bytes_ += piece.num_elems() * dtype_bytes(piece.tensor.dtype);
  }
  file_group_.broadcast(&num_bytes_, sizeof(num_bytes_), 0);
  if (is_created_alone()) return;
  auto num_ranks = static_cast<std::size_t>(file_group_.num_ranks());
  plans_.resize(num_ranks);
  for (auto& plan : plans_) plan = parse_plan(file_group_.broadcast(plan_text(plan), 0));
}

void ShardWriter::create_datasets(hid_t file) const {
  const H5Properties links(PC_H5(H5Pcreate(H5P_LINK_CREATE)));
  PC_H5(H5Pset_create_intermediate_group(links.get(), 1));
  for (const auto& plan : plans_) {
    for (const PlannedPiece& piece : plan) {
      const H5Properties layout(PC_H5(H5Pcreate(H5P_DATASET_CREATE)));
      PC_H5(H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER));
      const std::vector<hsize_t> dims = dims_of(piece);
      const int num_dims = static_cast<int>(dims.size());
      if (options_.deflate_level > 0) {
        PC_H5(H5Pset_chunk(layout.get(), num_dims, chunk_of(piece, options_.chunk_bytes).data()));
        PC_H5(H5Pset_shuffle(layout.get()));
        PC_H5(H5Pset_deflate(layout.get(), static_cast<unsigned>(options_.deflate_level)));
      } else {
        PC_H5(H5Pset_alloc_time(layout.get(), H5D_ALLOC_TIME_EARLY));
      }
      const H5Space space(PC_H5(H5Screate_simple(num_dims, dims.data(), nullptr)));
      const std::string name = dataset_name(piece.tensor, piece.begin);
      const H5Dataset dataset(PC_H5(H5Dcreate2(file, name.c_str(), file_type(piece.tensor.dtype), space.get(),
                                               links.get(), layout.get(), H5P_DEFAULT)));
    }
  }
}

void ShardWriter::create_alone(const std::string& path) {
  if (is_empty()) return;
  const H5Properties access = access_of(file_group_, options_, false);
  H5File file(PC_H5(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get())));
  create_datasets(file.get());
  PC_H5(H5Fclose(file.release()));
}

void ShardWriter::open(const std::string& path) {
  if (is_empty()) return;
  const H5Properties access = access_of(file_group_, options_, true);
  if (is_created_alone()) {
    file_ = H5File(PC_H5(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get())));
    writeback_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return;
  }
  file_ = H5File(PC_H5(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get())));
  create_datasets(file_.get());
}

std::vector<WrittenPiece> ShardWriter::write(const std::vector<PlannedPiece>& pieces,
                                             const std::vector<TensorView>& values) {
  if (is_empty()) return {};
  if (!is_created_alone()) return write_together(values);
  std::vector<WrittenPiece> written;
  for (std::size_t i = 0; i < pieces.size(); ++i) written.push_back(write_alone(pieces[i], values[i]));
  return written;
}

// In parts that stay in the cache between hashing and writing. The disk begins with each part at once, so that the sync
// at the end finds little left to do.
WrittenPiece ShardWriter::write_alone(const PlannedPiece& piece, const TensorView& values) {
  constexpr std::int64_t part_bytes = std::int64_t{1} << 20;
  const std::string name = dataset_name(piece.tensor, piece.begin);
  const H5Dataset dataset(PC_H5(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT)));
  const haddr_t offset = H5Dget_offset(dataset.get());
  PC_CHECK(offset != HADDR_UNDEF, name, " has no place in the file");
  const H5Space in_file(PC_H5(H5Dget_space(dataset.get())));
  const std::int64_t row_bytes = piece.count[1] * dtype_bytes(values.dtype);
  const std::int64_t rows_per_part = std::max<std::int64_t>(1, part_bytes / row_bytes);
  std::vector<hsize_t> count = dims_of(piece);
  std::vector<hsize_t> begin(count.size(), 0);
  Xxh3 hash;
  for (std::int64_t row = 0; row < piece.count[0]; row += rows_per_part) {
    const std::int64_t num_rows = std::min(rows_per_part, piece.count[0] - row);
    begin[0] = static_cast<hsize_t>(row);
    count[0] = static_cast<hsize_t>(num_rows);
    const H5Space in_memory(PC_H5(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr)));
    PC_H5(H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr));
    const char* part = static_cast<const char*>(values.data) + row * row_bytes;
    hash.add(part, num_rows * row_bytes);
    PC_H5(H5Dwrite(dataset.get(), memory_type(values.dtype), in_memory.get(), in_file.get(), H5P_DEFAULT, part));
    if (options_.on_progress) options_.on_progress();
    if (writeback_.is_open()) {
      sync_file_range(writeback_.get(), static_cast<off64_t>(offset) + row * row_bytes, num_rows * row_bytes,
                      SYNC_FILE_RANGE_WRITE);
    }
  }
  return {static_cast<std::int64_t>(offset), hash.value()};
}

// A rank that fails goes on taking part, so that no other waits for it.
std::vector<WrittenPiece> ShardWriter::write_together(const std::vector<TensorView>& values) {
  H5Properties transfer(PC_H5(H5Pcreate(H5P_DATASET_XFER)));
  if (file_group_.num_ranks() > 1) PC_H5(H5Pset_dxpl_mpio(transfer.get(), H5FD_MPIO_COLLECTIVE));
  std::exception_ptr failure;
  std::vector<WrittenPiece> written;
  for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
    for (std::size_t i = 0; i < plans_[rank].size(); ++i) {
      const PlannedPiece& piece = plans_[rank][i];
      const bool is_own = static_cast<int>(rank) == file_group_.rank();
      try {
        const std::string name = dataset_name(piece.tensor, piece.begin);
        const H5Dataset dataset(PC_H5(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT)));
        const H5Space in_file(PC_H5(H5Dget_space(dataset.get())));
        const std::vector<hsize_t> dims = dims_of(piece);
        const H5Space in_memory(PC_H5(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr)));
        if (!is_own) {
          PC_H5(H5Sselect_none(in_file.get()));
          PC_H5(H5Sselect_none(in_memory.get()));
        }
        PC_H5(H5Dwrite(dataset.get(), memory_type(piece.tensor.dtype), in_memory.get(), in_file.get(), transfer.get(),
                       is_own ? values[i].data : nullptr));
        if (options_.on_progress) options_.on_progress();
        if (is_own) written.push_back({-1, xxh3(values[i].data, values[i].num_bytes())});
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
  return written;
}

void ShardWriter::close() {
  if (is_empty()) return;
  PC_H5(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL));
  PC_H5(H5Fclose(file_.release()));
  writeback_ = FileDescriptor();
}

void ShardWriter::abandon() noexcept { file_ = H5File(); }

}  // namespace potato
