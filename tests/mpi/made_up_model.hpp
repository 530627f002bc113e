// A made-up model that is saved by some ranks and loaded by others: a split of it over `num_parts` ranks has rows and
// columns cut unevenly, empty pieces, three tensors fused in one storage, a replica on every rank, and a tensor that
// only the last rank knows.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "potato/checkpoint/folder.hpp"
#include "potato/checkpoint/load.hpp"
#include "potato/checkpoint/save.hpp"
#include "potato/config/config.hpp"
#include "potato/core/hash.hpp"
#include "support/catch.hpp"

namespace potato::test {

namespace fs = std::filesystem;

inline const Device cpu{DeviceKind::cpu, 0};
inline const std::vector<std::string> all_prefixes = {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"};
inline constexpr double untouched = -7;  // what memory holds where nothing was loaded

// A folder of this test's own, the same on all ranks; gone when it ends.
class SharedFolder {
 public:
  SharedFolder() {
    std::string made = (fs::temp_directory_path() / "potato_checkpoint_XXXXXX").string();
    if (world.rank() == 0 && mkdtemp(made.data()) == nullptr) made.clear();
    path_ = world.broadcast(made, 0);
    PC_CHECK(!path_.empty(), "no temporary folder");
  }
  ~SharedFolder() {
    if (std::uncaught_exceptions() == 0) MPI_Barrier(world.comm());
    std::error_code ignored;
    if (world.rank() == 0) fs::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Runs on rank 0 while the others wait.
  template <typename Work>
  void on_root(const Work& work) const {
    if (world.rank() == 0) work();
    world.barrier();
  }

  const HostGroup world{MPI_COMM_WORLD};

 private:
  std::string path_;
};

// The first ranks of the world; null on the others.
inline std::unique_ptr<HostGroup> first_ranks(const HostGroup& world, int num_ranks) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(world.comm(), world.rank() < num_ranks ? 0 : MPI_UNDEFINED, world.rank(), &comm);
  if (comm == MPI_COMM_NULL) return nullptr;
  auto group = std::make_unique<HostGroup>(comm);
  MPI_Comm_free(&comm);
  return group;
}

inline std::vector<int> group_sizes(const HostGroup& world) {
  std::vector<int> sizes;
  for (int size = 1; size <= world.num_ranks(); size *= 2) sizes.push_back(size);
  return sizes;
}

// Which made-up model, and how it is spread.
struct Layout {
  int part = 0;
  int num_parts = 1;
  bool only_first = false;  // part 0 holds all of it, the registries of the others are empty
  bool has_extra = false;   // one more tensor, "extra.weight"
  std::int64_t ffn = 17;
  std::int64_t big_rows = 0;  // rows of 256 elements, to be cut evenly
  DType dtype = DType::f32;
  bool writes = true;  // the pieces that it owns
  std::vector<std::string> prefixes = all_prefixes;
};

class Model {
 public:
  explicit Model(const Layout& layout) : layout_(layout) {
    if (!layout.only_first || layout.part == 0) declare_all();
    registry_.allocate({arena_, arena_, arena_}, {.dtype = layout.dtype, .bucket_elems = 64});
    for (const std::string& prefix : layout.prefixes) {
      blocks_.emplace_back(arena_, layout.dtype, Shape{registry_.num_flat_elems()});
      groups_.push_back({prefix, layout.dtype, {}});
      for (const Parameter& parameter : registry_.parameters()) {
        const TensorView storage =
            blocks_.back().view().rows(parameter.flat_offset_elems, parameter.spec.shape.num_elems());
        for (const Piece& piece : parameter.spec.pieces) {
          groups_.back().pieces.push_back(
              {piece, ParameterRegistry::piece_view(piece, storage), layout.writes && parameter.spec.is_owner});
        }
      }
    }
    set_all([](const std::string&, const Piece&, std::int64_t) { return untouched; });
  }

  std::span<const TensorGroup> groups() const { return groups_; }

  // Gives every element a value that its full name, its place and `seed` say, exact in single precision.
  void set_values(std::uint64_t seed) {
    set_all([&](const std::string& name, const Piece& piece, std::int64_t i) { return value(seed, name, piece, i); });
  }

  // What this rank does not write gets another value: none of it may reach a file.
  void spoil_replicas() {
    for (const TensorGroup& group : groups_) {
      for (const StoredPiece& stored : group.pieces) {
        if (!stored.is_written) std::fill_n(static_cast<char*>(stored.values.data), stored.values.num_bytes(), char{1});
      }
    }
  }

  // Elements of this rank that are not what set_values(seed) makes, memory between the pieces included.
  std::int64_t num_wrong(std::uint64_t seed) {
    return count_wrong(
        [&](const std::string& name, const Piece& piece, std::int64_t i) { return value(seed, name, piece, i); });
  }
  std::int64_t num_touched() {
    return count_wrong([](const std::string&, const Piece&, std::int64_t) { return untouched; });
  }

 private:
  void declare_all() {
    const std::int64_t part = layout_.part;
    const std::int64_t num_parts = layout_.only_first ? 1 : layout_.num_parts;
    const auto rows = [&](const std::string& name, std::int64_t num_rows, std::int64_t num_columns) {
      Piece piece{name, {num_rows, num_columns}};
      piece.begin[0] = num_rows * part / num_parts;
      piece.count = {num_rows * (part + 1) / num_parts - piece.begin[0], num_columns};
      return piece;
    };
    const auto vector_part = [&](const std::string& name, std::int64_t num_elems) {
      Piece piece = rows(name, num_elems, 1);
      piece.shape = Shape{num_elems};
      return piece;
    };
    const auto columns = [&](const std::string& name, std::int64_t num_rows, std::int64_t num_columns) {
      Piece piece = rows(name, num_columns, 1);
      return Piece{name, {num_rows, num_columns}, {0, piece.begin[0]}, {num_rows, piece.count[0]}};
    };
    add("embedding", {rows("embedding.weight", 13, 6)});
    add("tiny", {rows("tiny.weight", 3, 4)});  // with more than three parts some have none of it
    add("qkv", {rows("attn.q.weight", 8, 6), rows("attn.k.weight", 8, 6), rows("attn.v.weight", 8, 6)});
    add("qkv_bias", {vector_part("attn.q.bias", 11), vector_part("attn.k.bias", 11), vector_part("attn.v.bias", 11)});
    add("down", {columns("mlp.down.weight", 6, layout_.ffn)});
    add("norm", {Piece{"norm.weight", {6}, {0, 0}, {6, 1}}}, Sharing::replicated, part == 0);
    if (part == num_parts - 1) add("head", {Piece{"head.bias", {5}, {0, 0}, {5, 1}}});
    if (layout_.has_extra) add("extra", {rows("extra.weight", 4, 4)});
    if (layout_.big_rows > 0) add("big", {rows("big.weight", layout_.big_rows, 256)});
  }

  void add(const std::string& name, std::vector<Piece> pieces, Sharing sharing = Sharing::sharded,
           bool is_owner = true) {
    std::int64_t num_elems = 3;  // a gap at the start
    for (Piece& piece : pieces) {
      piece.offset_elems = num_elems;
      num_elems += piece.num_elems();
    }
    ParameterSpec spec;
    spec.name = name;
    spec.shape = {num_elems};
    spec.pieces = std::move(pieces);
    spec.sharing = sharing;
    spec.is_owner = is_owner;
    registry_.declare(std::move(spec));
  }

  static double value(std::uint64_t seed, const std::string& name, const Piece& piece, std::int64_t i) {
    const std::int64_t row = piece.begin[0] + i / piece.count[1];
    const std::int64_t column = piece.begin[1] + i % piece.count[1];
    const std::uint64_t bits = mix64(mix64(hash_name(name) + seed) + static_cast<std::uint64_t>(row * 4096 + column));
    return static_cast<double>(bits >> 40) * 0x1p-24;
  }

  // What all flat blocks should hold: `value_of` in the pieces, `untouched` between them.
  template <typename ValueOf>
  std::vector<double> expected(const TensorGroup& group, const ValueOf& value_of) const {
    std::vector<double> flat(static_cast<std::size_t>(registry_.num_flat_elems()), untouched);
    for (const Parameter& parameter : registry_.parameters()) {
      for (const Piece& piece : parameter.spec.pieces) {
        for (std::int64_t i = 0; i < piece.num_elems(); ++i) {
          flat[static_cast<std::size_t>(parameter.flat_offset_elems + piece.offset_elems + i)] =
              value_of(group.prefix + "/" + piece.name, piece, i);
        }
      }
    }
    return flat;
  }

  template <typename ValueOf>
  void set_all(const ValueOf& value_of) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<double> flat = expected(groups_[g], value_of);
      const TensorView block = blocks_[g].view();
      dispatch_real(block.dtype, [&](auto zero) {
        using T = decltype(zero);
        std::transform(flat.begin(), flat.end(), block.as<T>(), [](double x) { return static_cast<T>(x); });
      });
    }
  }

  template <typename ValueOf>
  std::int64_t count_wrong(const ValueOf& value_of) const {
    std::int64_t wrong = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<double> flat = expected(groups_[g], value_of);
      const TensorView block = blocks_[g].view();
      dispatch_real(block.dtype, [&](auto zero) {
        const auto* values = block.as<decltype(zero)>();
        for (std::size_t i = 0; i < flat.size(); ++i) wrong += static_cast<double>(values[i]) != flat[i];
      });
    }
    return wrong;
  }

  Layout layout_;
  Arena arena_{cpu, "test", 32 << 20};
  ParameterRegistry registry_;
  std::vector<Tensor> blocks_;
  std::vector<TensorGroup> groups_;
};

inline Layout split_over(const HostGroup& group) {
  Layout layout;
  layout.part = group.rank();
  layout.num_parts = group.num_ranks();
  return layout;
}

inline CheckpointInfo info_at(std::int64_t step) {
  CheckpointInfo info;
  info.step = step;
  info.next_sample = (1LL << 40) + step;
  info.tokens = 1LL << 50;
  info.model_signature = R"({"family":"made up"})";
  info.config_ini = "[run]\nseed = 1\n";
  info.environment = std::string(100000, 'e') + "Ä\n";  // more than an attribute can hold
  info.dtype = "fp32";
  return info;
}

// How the files of a checkpoint are cut and written.
inline SaveOptions options_of(const HostGroup& group, const std::string& files, int deflate_level = 0) {
  SaveOptions options;
  const std::vector<std::string> hosts(static_cast<std::size_t>(group.num_ranks()), "host");
  const CheckpointFile file = checkpoint_file(files, hosts, group.rank());
  options.file = file.file;
  options.num_files = file.num_files;
  options.deflate_level = deflate_level;
  options.chunk_bytes = 64;
  return options;
}

// Saves the values of set_values(seed) at `step`, whatever the replicas hold.
inline std::string save(const std::string& folder, const HostGroup& group, std::int64_t step, std::uint64_t seed,
                        const Layout& layout, const SaveOptions& options) {
  Model model(layout);
  model.set_values(seed);
  model.spoil_replicas();
  return CheckpointSaver(folder, group, options).save(model.groups(), info_at(step));
}
inline std::string save(const std::string& folder, const HostGroup& group, std::int64_t step, std::uint64_t seed,
                        const Layout& layout) {
  return save(folder, group, step, seed, layout, options_of(group, "per_rank"));
}
inline std::string save(const std::string& folder, const HostGroup& group, std::int64_t step, std::uint64_t seed) {
  return save(folder, group, step, seed, split_over(group));
}

inline std::int64_t num_wrong_after_load(const std::string& path, const HostGroup& group, std::uint64_t seed,
                                         const Layout& layout) {
  Model model(layout);
  Checkpoint(path, group).load(model.groups());
  return model.num_wrong(seed);
}

// The text of the Problem that `work` ends with, which must be the same on all ranks; "" where there is none.
template <typename Problem, typename Work>
std::string problem_of(const HostGroup& group, const Work& work) {
  std::string text;
  try {
    work();
  } catch (const Problem& problem) {
    text = problem.what();
  }
  const std::vector<std::string> texts = group.all_gather(text);
  for (const std::string& other : texts) CHECK(other == texts.front());
  return text;
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace potato::test
