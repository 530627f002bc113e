#include "schema.hpp"

#include <array>
#include <sstream>

namespace potato {

TensorShapes gather_shapes(const HostGroup& group, std::span<const TensorGroup> groups) {
  TensorShapes own;
  for (const TensorGroup& tensors : groups) {
    for (const StoredPiece& stored : tensors.pieces) own.emplace(stored.piece.name, stored.piece.shape);
  }
  std::ostringstream mine;
  for (const auto& [name, shape] : own) {
    mine << name << ' ' << shape.num_dims() << ' ' << shape[0] << ' ' << shape[1] << '\n';
  }
  TensorShapes shapes;
  for (const std::string& text : group.all_gather(mine.str())) {
    std::istringstream in(text);
    std::string name;
    int num_dims = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    while (in >> name >> num_dims >> rows >> columns) {
      const Shape shape = num_dims == 1 ? Shape{rows} : Shape{rows, columns};
      const auto [place, is_new] = shapes.try_emplace(name, shape);
      PC_CHECK(is_new || place->second == shape, name, ": ", place->second, " and ", shape);
    }
  }
  return shapes;
}

hid_t memory_type(DType dtype) {
  PC_CHECK(dtype == DType::f32 || dtype == DType::f64, dtype_name(dtype));
  return dtype == DType::f32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE;
}

H5Space piece_selection(hid_t dataset, const Piece& piece) {
  H5Space space(PC_H5(H5Dget_space(dataset)));
  const std::array<hsize_t, 2> begin = {static_cast<hsize_t>(piece.begin[0]), static_cast<hsize_t>(piece.begin[1])};
  const std::array<hsize_t, 2> count = {static_cast<hsize_t>(piece.count[0]), static_cast<hsize_t>(piece.count[1])};
  PC_H5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr));
  return space;
}

}  // namespace potato
