#include "index.hpp"

#include <filesystem>
#include <vector>

#include "h5.hpp"
#include "info_fields.hpp"
#include "potato/core/posix_file.hpp"
#include "potato/core/xxh3.hpp"

namespace potato {

namespace {

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

std::vector<hsize_t> dims_of(const StoredTensor& tensor, std::int64_t rows, std::int64_t columns) {
  std::vector<hsize_t> dims = {static_cast<hsize_t>(rows)};
  if (tensor.shape.num_dims() == 2) dims.push_back(static_cast<hsize_t>(columns));
  return dims;
}

void add_tensor(hid_t file, hid_t links, const Manifest& manifest, std::size_t index,
                const std::vector<const ManifestPiece*>& pieces) {
  const StoredTensor& tensor = manifest.tensors[index];
  const std::vector<hsize_t> dims = dims_of(tensor, tensor.shape[0], tensor.num_columns());
  const int num_dims = static_cast<int>(dims.size());
  const H5Space whole(PC_H5(H5Screate_simple(num_dims, dims.data(), nullptr)));
  const H5Properties layout(PC_H5(H5Pcreate(H5P_DATASET_CREATE)));
  for (const ManifestPiece* piece : pieces) {
    const std::vector<hsize_t> begin = dims_of(tensor, piece->begin[0], piece->begin[1]);
    const std::vector<hsize_t> count = dims_of(tensor, piece->count[0], piece->count[1]);
    const H5Space source(PC_H5(H5Screate_simple(num_dims, count.data(), nullptr)));
    PC_H5(H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr));
    PC_H5(H5Pset_virtual(layout.get(), whole.get(), manifest.files[static_cast<std::size_t>(piece->file)].name.c_str(),
                         manifest.dataset_name(*piece).c_str(), source.get()));
  }
  PC_H5(H5Sselect_all(whole.get()));
  const hid_t type = tensor.dtype == DType::f64 ? H5T_IEEE_F64LE : H5T_IEEE_F32LE;
  const H5Dataset dataset(
      PC_H5(H5Dcreate2(file, tensor.name.c_str(), type, whole.get(), links, layout.get(), H5P_DEFAULT)));
}

}  // namespace

FileBlock write_index(const std::string& folder, const Manifest& manifest) {
  silence_h5();
  const std::string path = (std::filesystem::path(folder) / index_name).string();
  std::vector<std::vector<const ManifestPiece*>> pieces(manifest.tensors.size());
  for (const ManifestPiece& piece : manifest.pieces) pieces[static_cast<std::size_t>(piece.tensor)].push_back(&piece);
  {
    const H5Properties access(PC_H5(H5Pcreate(H5P_FILE_ACCESS)));
    PC_H5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_LATEST));
    H5File file(PC_H5(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())));
    write_number(file.get(), "format_version", checkpoint_format_version);
    for (const auto& [name, field] : info_numbers) write_number(file.get(), name, manifest.info.*field);
    {
      const H5Group texts(PC_H5(H5Gcreate2(file.get(), "info", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)));
      for (const auto& [name, field] : info_texts) write_text(texts.get(), name, manifest.info.*field);
    }
    const H5Properties links(PC_H5(H5Pcreate(H5P_LINK_CREATE)));
    PC_H5(H5Pset_create_intermediate_group(links.get(), 1));
    for (std::size_t i = 0; i < pieces.size(); ++i) add_tensor(file.get(), links.get(), manifest, i, pieces[i]);
    PC_H5(H5Fclose(file.release()));
  }
  sync_path(path);
  FileBlock index;
  index.num_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  std::string bytes(static_cast<std::size_t>(index.num_bytes), '\0');
  read_at(open_for_reading(path), path, bytes.data(), 0, index.num_bytes);
  index.hash = xxh3(bytes);
  return index;
}

}  // namespace potato
