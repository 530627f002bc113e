#include "potato/checkpoint/load.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "h5.hpp"
#include "manifest.hpp"
#include "potato/comm/mpi_check.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/narrow.hpp"
#include "potato/core/xxh3.hpp"
#include "reading.hpp"

namespace potato {

namespace {

// A rectangle of a tensor.
struct Slab {
  std::array<std::int64_t, 2> begin{0, 0};
  std::array<std::int64_t, 2> count{0, 0};

  bool is_empty() const { return count[0] <= 0 || count[1] <= 0; }
};

Slab intersection(const Slab& a, const Slab& b) {
  Slab result;
  for (std::size_t dim = 0; dim < 2; ++dim) {
    result.begin[dim] = std::max(a.begin[dim], b.begin[dim]);
    result.count[dim] = std::min(a.begin[dim] + a.count[dim], b.begin[dim] + b.count[dim]) - result.begin[dim];
  }
  return result;
}

// A part of a stored piece that goes into one wanted piece.
struct Target {
  const StoredPiece* wanted = nullptr;
  Slab part;
};

// Copies `count` elements between two dtypes.
void convert(const char* source, DType from, char* destination, DType to, std::int64_t count) {
  if (from == to) {
    std::memcpy(destination, source, static_cast<std::size_t>(count * dtype_bytes(from)));
    return;
  }
  dispatch_real(from, [&](auto zero_from) {
    dispatch_real(to, [&](auto zero_to) {
      using From = decltype(zero_from);
      using To = decltype(zero_to);
      const auto* in = reinterpret_cast<const From*>(source);
      std::transform(in, in + count, reinterpret_cast<To*>(destination), [](From x) { return static_cast<To>(x); });
    });
  });
}

char* place_in(const StoredPiece& wanted, std::int64_t row, std::int64_t column) {
  const std::int64_t index = (row - wanted.piece.begin[0]) * wanted.piece.count[1] + (column - wanted.piece.begin[1]);
  return static_cast<char*>(wanted.values.data) + index * dtype_bytes(wanted.values.dtype);
}

// Copies elements [first, first + num) of a stored piece, row-major, which lie at `memory`, to where `target` wants
// them.
void copy_elems(const ManifestPiece& piece, DType dtype, std::int64_t first, std::int64_t num, const char* memory,
                const Target& target) {
  const std::int64_t width = piece.count[1];
  const std::int64_t part_column = target.part.begin[1] - piece.begin[1];
  for (std::int64_t row = first / width; row * width < first + num; ++row) {
    const std::int64_t tensor_row = piece.begin[0] + row;
    if (tensor_row < target.part.begin[0] || tensor_row >= target.part.begin[0] + target.part.count[0]) continue;
    const std::int64_t begin = std::max(first, row * width + part_column);
    const std::int64_t end = std::min(first + num, row * width + part_column + target.part.count[1]);
    if (begin >= end) continue;
    convert(memory + (begin - first) * dtype_bytes(dtype), dtype,
            place_in(*target.wanted, tensor_row, piece.begin[1] + begin - row * width), target.wanted->values.dtype,
            end - begin);
  }
}

class Loader {
 public:
  Loader(const std::string& folder, const Manifest& manifest, const HostGroup& group,
         std::span<const TensorGroup> groups, Checkpoint::Rest rest)
      : folder_(folder), manifest_(manifest), group_(group), groups_(groups), rest_(rest), reader_(folder, manifest) {}

  LoadReport run() {
    agree_on_schema();
    find_targets();
    const std::vector<int> owners = share_out();
    Problems problems;
    for (std::size_t i = 0; i < manifest_.pieces.size(); ++i) {
      if (manifest_.pieces[i].offset_bytes >= 0) guarded(i, problems, [&] { read_piece(i, owners[i]); });
    }
    reader_.check_blocks(group_.rank(), group_.num_ranks(), problems);
    agree(problems);
    // Compressed pieces lie in blocks, whose hashes were right: now HDF5 may open their files.
    for (std::size_t i = 0; i < manifest_.pieces.size(); ++i) {
      const bool is_mine = owners[i] == group_.rank() || !targets_[i].empty();
      if (manifest_.pieces[i].offset_bytes < 0 && is_mine) guarded(i, problems, [&] { read_compressed_piece(i); });
    }
    agree(problems);
    report_.num_bytes = manifest_.total_bytes();
    return report_;
  }

 private:
  void agree(const Problems& problems) const {
    try {
      group_.agree(problems.texts());
    } catch (const ConfigError& error) {
      throw DamageError(error.problems());
    }
  }

  template <typename Work>
  void guarded(std::size_t i, Problems& problems, const Work& work) const {
    try {
      work();
    } catch (const std::exception& error) {
      problems.add(
          cat("checkpoint ", folder_, " is damaged: ", manifest_.place_of(manifest_.pieces[i]), ": ", error.what()));
    }
  }

  // Names and shapes of what all ranks want against what there is; rank 0 compares.
  void agree_on_schema() {
    std::set<std::string> lines;
    for (const TensorGroup& tensors : groups_) {
      for (const StoredPiece& stored : tensors.pieces) {
        const Shape& shape = stored.piece.shape;
        lines.insert(cat(tensors.prefix, "/", stored.piece.name, " ", shape.num_dims(), " ", shape[0], " ",
                         shape.num_dims() == 2 ? shape[1] : 1, "\n"));
      }
    }
    std::string mine;
    for (const std::string& line : lines) mine += line;
    const auto all = group_.gather(mine, 0);
    std::vector<std::string> problems;
    std::string loaded;
    std::string left_out;
    if (group_.rank() == 0) {
      std::map<std::string, Shape> wanted;
      for (const std::string& text : all) {
        std::istringstream in(text);
        std::string name;
        int num_dims = 0;
        std::int64_t rows = 0;
        std::int64_t columns = 0;
        while (in >> name >> num_dims >> rows >> columns) {
          wanted.try_emplace(name, num_dims == 1 ? Shape{rows} : Shape{rows, columns});
        }
      }
      compare(wanted, problems, loaded, left_out);
    }
    group_.agree(problems);
    report_.loaded = words(group_.broadcast(loaded, 0));
    report_.left_out = words(group_.broadcast(left_out, 0));
  }

  void compare(const std::map<std::string, Shape>& wanted, std::vector<std::string>& problems, std::string& loaded,
               std::string& left_out) const {
    std::map<std::string, Shape> present;
    for (const StoredTensor& tensor : manifest_.tensors) present.emplace(tensor.name, tensor.shape);
    for (const auto& [name, shape] : wanted) {
      const auto found = present.find(name);
      if (found == present.end()) {
        problems.push_back(cat("checkpoint ", folder_, ": ", name, " is missing"));
      } else if (!(found->second == shape)) {
        problems.push_back(cat("checkpoint ", folder_, ": ", name, " is ", found->second, ", the model needs ", shape));
      }
      loaded += name + "\n";
    }
    for (const auto& [name, shape] : present) {
      if (wanted.contains(name)) continue;
      const bool under_asked =
          std::any_of(groups_.begin(), groups_.end(),
                      [&, &full = name](const TensorGroup& tensors) { return full.starts_with(tensors.prefix + "/"); });
      if (under_asked || rest_ == Checkpoint::Rest::refuse) {
        problems.push_back(cat("checkpoint ", folder_, ": ", name, " belongs to no tensor of the model"));
      } else {
        left_out += name + "\n";
      }
    }
  }

  static std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> result;
    for (std::string word; in >> word;) result.push_back(word);
    return result;
  }

  void find_targets() {
    std::map<std::string, std::vector<std::size_t>> pieces_of;
    for (std::size_t i = 0; i < manifest_.pieces.size(); ++i) {
      pieces_of[tensor_of(manifest_.pieces[i]).name].push_back(i);
    }
    targets_.resize(manifest_.pieces.size());
    for (const TensorGroup& tensors : groups_) {
      for (const StoredPiece& stored : tensors.pieces) {
        const auto found = pieces_of.find(tensors.prefix + "/" + stored.piece.name);
        PC_CHECK(found != pieces_of.end() || stored.piece.shape.num_elems() == 0, stored.piece.name);
        if (found == pieces_of.end()) continue;
        for (const std::size_t i : found->second) {
          const ManifestPiece& piece = manifest_.pieces[i];
          const Slab part = intersection({piece.begin, piece.count}, {stored.piece.begin, stored.piece.count});
          if (!part.is_empty()) targets_[i].push_back({&stored, part});
        }
      }
    }
  }

  bool wants_all_of(std::size_t i) const {
    const ManifestPiece& piece = manifest_.pieces[i];
    return std::any_of(targets_[i].begin(), targets_[i].end(),
                       [&](const Target& target) { return target.part.count == piece.count; });
  }

  // The rank that hashes each piece: one that wants all of it, else one after another. Collective.
  std::vector<int> share_out() const {
    constexpr int nobody = std::numeric_limits<int>::max();
    std::vector<int> owners(manifest_.pieces.size(), nobody);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (wants_all_of(i)) owners[i] = group_.rank();
    }
    PC_MPI(MPI_Allreduce(MPI_IN_PLACE, owners.data(), narrow<int>(static_cast<std::int64_t>(owners.size())), MPI_INT,
                         MPI_MIN, group_.comm()));
    int next = 0;
    for (int& owner : owners) {
      if (owner == nobody) owner = next++ % group_.num_ranks();
    }
    return owners;
  }

  const StoredTensor& tensor_of(const ManifestPiece& piece) const {
    return manifest_.tensors[static_cast<std::size_t>(piece.tensor)];
  }

  void read_piece(std::size_t i, int owner) {
    const ManifestPiece& piece = manifest_.pieces[i];
    if (owner == group_.rank()) return read_and_hash(piece, targets_[i]);
    const DType dtype = tensor_of(piece).dtype;
    const std::int64_t row_bytes = piece.count[1] * dtype_bytes(dtype);
    const std::int64_t most_rows = std::max<std::int64_t>(1, ShardReader::part_bytes / row_bytes);
    for (const Target& target : targets_[i]) {
      const std::int64_t first = target.part.begin[0] - piece.begin[0];
      for (std::int64_t row = first; row < first + target.part.count[0]; row += most_rows) {
        const std::int64_t num_rows = std::min(most_rows, first + target.part.count[0] - row);
        rows_.resize(static_cast<std::size_t>(num_rows * row_bytes));
        reader_.read(piece.file, piece.offset_bytes + row * row_bytes, num_rows * row_bytes, rows_.data());
        copy_elems(piece, dtype, row * piece.count[1], num_rows * piece.count[1], rows_.data(), target);
      }
    }
  }

  void read_and_hash(const ManifestPiece& piece, const std::vector<Target>& targets) {
    const DType dtype = tensor_of(piece).dtype;
    const std::int64_t elem_bytes = dtype_bytes(dtype);
    // Where one wanted piece takes the rows as they are, they are read to their place at once.
    const bool is_direct = targets.size() == 1 && targets[0].part.count == piece.count &&
                           targets[0].wanted->piece.count[1] == piece.count[1] &&
                           targets[0].wanted->values.dtype == dtype;
    char* direct = is_direct ? place_in(*targets[0].wanted, piece.begin[0], piece.begin[1]) : nullptr;
    const auto memory_of = [&](std::int64_t done, std::int64_t) { return is_direct ? direct + done : nullptr; };
    const auto copy = [&](std::int64_t done, std::int64_t num_bytes, const char* memory) {
      if (is_direct) return;
      for (const Target& target : targets) {
        copy_elems(piece, dtype, done / elem_bytes, num_bytes / elem_bytes, memory, target);
      }
    };
    const std::uint64_t found =
        reader_.hash(piece.file, piece.offset_bytes, manifest_.piece_bytes(piece), memory_of, copy);
    if (found != piece.hash) throw DamageError(wrong_hash(found, piece.hash));
  }

  void read_compressed_piece(std::size_t i) {
    const ManifestPiece& piece = manifest_.pieces[i];
    const StoredTensor& tensor = tensor_of(piece);
    rows_.resize(static_cast<std::size_t>(manifest_.piece_bytes(piece)));
    read_compressed(reader_.path(piece.file), manifest_.dataset_name(piece), tensor, rows_.data());
    const std::uint64_t found = xxh3(rows_.data(), manifest_.piece_bytes(piece));
    if (found != piece.hash) throw DamageError(wrong_hash(found, piece.hash));
    for (const Target& target : targets_[i]) {
      copy_elems(piece, tensor.dtype, 0, piece.num_elems(), rows_.data(), target);
    }
  }

  const std::string& folder_;
  const Manifest& manifest_;
  const HostGroup& group_;
  std::span<const TensorGroup> groups_;
  Checkpoint::Rest rest_;
  ShardReader reader_;
  std::vector<std::vector<Target>> targets_;  // by piece, of this rank
  std::vector<char> rows_;
  LoadReport report_;
};

}  // namespace

Checkpoint::Checkpoint(std::string folder, const HostGroup& group) : folder_(std::move(folder)), group_(group) {
  const LibraryScope library;
  manifest_ = std::make_unique<const Manifest>(read_manifest(folder_, group_));
  const auto problems = file_problems(folder_, *manifest_, group_);
  if (!problems.empty()) throw DamageError(problems);
  index_problem_ = potato::index_problem(folder_, *manifest_, group_);
}

Checkpoint::~Checkpoint() = default;

const CheckpointInfo& Checkpoint::info() const noexcept { return manifest_->info; }

LoadReport Checkpoint::load(std::span<const TensorGroup> groups, Rest rest) const {
  const LibraryScope library;
  return Loader(folder_, *manifest_, group_, groups, rest).run();
}

}  // namespace potato
