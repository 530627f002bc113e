// Checkpoints written by some ranks and read by others, and everything that can be wrong with a file or a folder.
//
// The model is made up: a split of it over `num_parts` ranks has rows and columns cut unevenly, empty pieces, three
// tensors fused in one storage, a replica on every rank, and a tensor that only the last rank knows.
#include <hdf5.h>
#include <mpi.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "potato/checkpoint/checkpoint.hpp"
#include "potato/core/hash.hpp"
#include "support/catch.hpp"

using namespace potato;
namespace fs = std::filesystem;

namespace {

const Device cpu{DeviceKind::cpu, 0};
const std::vector<std::string> all_prefixes = {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"};
constexpr double untouched = -7;  // what memory holds where nothing was loaded

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
std::unique_ptr<HostGroup> first_ranks(const HostGroup& world, int num_ranks) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(world.comm(), world.rank() < num_ranks ? 0 : MPI_UNDEFINED, world.rank(), &comm);
  if (comm == MPI_COMM_NULL) return nullptr;
  auto group = std::make_unique<HostGroup>(comm);
  MPI_Comm_free(&comm);
  return group;
}

std::vector<int> group_sizes(const HostGroup& world) {
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

Layout split_over(const HostGroup& group) {
  Layout layout;
  layout.part = group.rank();
  layout.num_parts = group.num_ranks();
  return layout;
}

CheckpointInfo info_at(std::int64_t step) {
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

// Saves the values of set_values(seed) at `step`, whatever the replicas hold.
std::string save(const std::string& folder, const HostGroup& group, std::int64_t step, std::uint64_t seed,
                 const Layout& layout) {
  Model model(layout);
  model.set_values(seed);
  model.spoil_replicas();
  return save_checkpoint(folder, group, model.groups(), info_at(step));
}
std::string save(const std::string& folder, const HostGroup& group, std::int64_t step, std::uint64_t seed) {
  return save(folder, group, step, seed, split_over(group));
}

std::int64_t num_wrong_after_load(const std::string& path, const HostGroup& group, std::uint64_t seed,
                                  const Layout& layout) {
  Model model(layout);
  load_checkpoint(path, group, model.groups());
  return model.num_wrong(seed);
}

std::string file_in(const std::string& step_folder) { return step_folder + "/checkpoint.h5"; }

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

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST_CASE("case-04: saved by any number of ranks, loaded by any other, bitwise", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  std::int64_t step = 0;
  for (const int num_savers : group_sizes(folder.world)) {
    std::string path;
    const std::uint64_t seed = static_cast<std::uint64_t>(++step);
    if (const auto savers = first_ranks(folder.world, num_savers)) path = save(folder / "c", *savers, step, seed);
    path = file_in(folder.world.broadcast(path, 0));
    for (const int num_loaders : group_sizes(folder.world)) {
      const auto loaders = first_ranks(folder.world, num_loaders);
      if (!loaders) continue;
      INFO(num_savers << " to " << num_loaders << " ranks");
      CHECK(num_wrong_after_load(path, *loaders, seed, split_over(*loaders)) == 0);
      const CheckpointInfo info = read_checkpoint_info(path, *loaders);
      const CheckpointInfo saved = info_at(step);
      CHECK(info.step == step);
      CHECK(info.next_sample == saved.next_sample);
      CHECK(info.tokens == saved.tokens);
      CHECK(info.model_signature == saved.model_signature);
      CHECK(info.config_ini == saved.config_ini);
      CHECK((info.environment == saved.environment));
      CHECK(info.grid.empty());
      CHECK(info.dtype == saved.dtype);
    }
  }
}

TEST_CASE("only writers write, and every rank reads its replicas", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  const int num_parts = (world.num_ranks() + 1) / 2;  // about two data ranks
  Layout layout;
  layout.part = world.rank() % num_parts;
  layout.num_parts = num_parts;
  layout.writes = world.rank() < num_parts;
  Model model(layout);
  model.set_values(layout.writes ? 5 : 666);
  const std::string path = file_in(save_checkpoint(folder / "c", world, model.groups(), info_at(1)));
  CHECK(num_wrong_after_load(path, world, 5, layout) == 0);
}

TEST_CASE("ranks without a parameter take part", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  Layout layout = split_over(folder.world);
  layout.only_first = true;
  const std::string path = file_in(save(folder / "c", folder.world, 1, 9, layout));
  CHECK(num_wrong_after_load(path, folder.world, 9, layout) == 0);
  CHECK(num_wrong_after_load(path, folder.world, 9, split_over(folder.world)) == 0);
}

TEST_CASE("fp32 and fp64 checkpoints load into either", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  for (const DType stored : {DType::f32, DType::f64}) {
    Layout layout = split_over(folder.world);
    layout.dtype = stored;
    const std::string path = file_in(save(folder / "c", folder.world, 1, 3, layout));
    for (const DType wanted : {DType::f32, DType::f64}) {
      layout.dtype = wanted;
      CHECK(num_wrong_after_load(path, folder.world, 3, layout) == 0);
    }
  }
}

TEST_CASE("case-02: what the model and the file do not share is an error that names it", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const Layout plain = split_over(folder.world);
  const auto problem = [&](const Layout& saved, const Layout& wanted) {
    const std::string path = file_in(save(folder / "c", folder.world, 1, 1, saved));
    Model model(wanted);
    std::string text =
        problem_of<ConfigError>(folder.world, [&] { load_checkpoint(path, folder.world, model.groups()); });
    CHECK(model.num_touched() == 0);
    CHECK_THAT(text, ContainsSubstring(path));
    return text;
  };
  Layout other = plain;
  other.has_extra = true;
  CHECK_THAT(problem(plain, other), ContainsSubstring("/model/extra.weight is missing") &&
                                        ContainsSubstring("/optimizer/exp_avg_sq/extra.weight is missing"));
  CHECK_THAT(problem(other, plain), ContainsSubstring("/optimizer/exp_avg/extra.weight belongs to no tensor"));
  other = plain;
  other.prefixes = {"/model", "/optimizer/exp_avg"};
  CHECK_THAT(problem(other, plain), ContainsSubstring("/optimizer/exp_avg_sq/norm.weight is missing"));
  CHECK_THAT(problem(plain, other), ContainsSubstring("/optimizer/exp_avg_sq"));
  other = plain;
  other.ffn = 16;
  CHECK_THAT(problem(plain, other), ContainsSubstring("/model/mlp.down.weight is [6, 17], the model needs [6, 16]"));
}

TEST_CASE("a damaged or foreign file is an error on all ranks that names it", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const std::string good = file_in(save(folder / "c", folder.world, 1, 1));
  const std::string path = folder / "bad.h5";
  Model model(split_over(folder.world));
  const auto check_refused = [&](const std::string& what) {
    INFO(what);
    CHECK_THAT(problem_of<ConfigError>(folder.world, [&] { read_checkpoint_info(path, folder.world); }),
               ContainsSubstring(path));
    CHECK_THAT(problem_of<ConfigError>(folder.world, [&] { load_checkpoint(path, folder.world, model.groups()); }),
               ContainsSubstring(path));
    CHECK(model.num_touched() == 0);
  };
  check_refused("missing");
  folder.on_root([&] { fs::create_directory(path); });
  check_refused("a folder");
  folder.on_root([&] { fs::remove(path); });
  for (const char* text : {"", "x", "\211HDF\r\n\032\n", "this is no checkpoint, but a text that goes on a little"}) {
    folder.on_root([&] { write_file(path, text); });
    check_refused(text);
  }
  std::int64_t num_bytes = 0;
  folder.on_root([&] { num_bytes = static_cast<std::int64_t>(fs::file_size(good)); });
  folder.world.broadcast(&num_bytes, sizeof(num_bytes), 0);
  for (const std::int64_t kept : {std::int64_t{40}, std::int64_t{200}, num_bytes / 2, num_bytes - 1}) {
    folder.on_root([&] {
      fs::copy_file(good, path, fs::copy_options::overwrite_existing);
      fs::resize_file(path, static_cast<std::uintmax_t>(kept));
    });
    check_refused(cat("the first ", kept, " of ", num_bytes, " bytes"));
  }
  // HDF5 files of somebody else: an empty one, and one where a text of ours is an array of another kind.
  folder.on_root([&] { H5Fclose(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)); });
  check_refused("an empty HDF5 file");
  folder.on_root([&] {
    fs::copy_file(good, path, fs::copy_options::overwrite_existing);
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Ldelete(file, "/info/config", H5P_DEFAULT);
    const hsize_t num_elems = 1 << 16;
    const hid_t space = H5Screate_simple(1, &num_elems, nullptr);
    H5Dclose(H5Dcreate2(file, "/info/config", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
    H5Fclose(file);
  });
  CHECK_THAT(problem_of<ConfigError>(folder.world, [&] { read_checkpoint_info(path, folder.world); }),
             ContainsSubstring(path) && ContainsSubstring("info/config"));
}

TEST_CASE("resume: none, latest, a folder of a step or a run, a file", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  const auto resolve = [&](const std::string& resume) {
    std::string path = resolve_checkpoint(resume, checkpoints, folder.world);
    const std::vector<std::string> all = folder.world.all_gather(path);
    for (const std::string& other : all) CHECK(other == path);
    return path;
  };
  CHECK(resolve("none").empty());
  CHECK(resolve("latest").empty());  // no folder yet
  const std::string older = save(checkpoints, folder.world, 7, 1);
  const std::string newer = save(checkpoints, folder.world, 12, 2);
  CHECK(older == checkpoints + "/step-00000007");
  CHECK(resolve("none").empty());
  CHECK(resolve("latest") == file_in(newer));
  CHECK(resolve(older) == file_in(older));
  CHECK(resolve(file_in(older)) == file_in(older));
  CHECK(resolve(checkpoints) == file_in(newer));
  CHECK(resolve(folder / "") == file_in(newer));
  CHECK_THAT(problem_of<ConfigError>(folder.world, [&] { resolve(checkpoints + "/step-00000008"); }),
             ContainsSubstring("step-00000008"));
  for (const char* text : {"step-00000007", "step-00000007\n"}) {  // the file decides, not the names of folders
    folder.on_root([&] { write_file(checkpoints + "/latest", text); });
    CHECK(resolve("latest") == file_in(older));
  }
  for (const char* text : {"", "\n", "step-00000099\n", "../step-00000007\n", "step-0000000x\n", "step-7\n"}) {
    folder.on_root([&] { write_file(checkpoints + "/latest", text); });
    INFO(text);
    CHECK(resolve("latest") == file_in(newer));
  }
  // More digits than the name is padded to.
  const std::string newest = save(checkpoints, folder.world, 1234567890123, 3);
  CHECK(resolve("latest") == file_in(newest));
  folder.on_root([&] { fs::remove(checkpoints + "/latest"); });
  CHECK(resolve("latest") == file_in(newest));
}

TEST_CASE("case-05: half checkpoints are passed over, removed, and in nobody's way", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  const std::string checkpoints = folder / "c";
  const std::string good = save(checkpoints, world, 4, 4);
  const auto leave_half = [&](const std::string& name) {
    folder.on_root([&] {
      fs::create_directory(checkpoints + "/" + name);
      write_file(checkpoints + "/" + name + "/checkpoint.h5", "half");
    });
  };
  leave_half("step-00000008.tmp");
  leave_half("step-00000009.tmp");
  folder.on_root([&] { fs::remove(checkpoints + "/latest"); });
  CHECK(resolve_checkpoint("latest", checkpoints, world) == file_in(good));
  const std::string next = save(checkpoints, world, 8, 8);  // over what is left of itself
  CHECK(num_wrong_after_load(file_in(next), world, 8, split_over(world)) == 0);
  clean_leftovers(checkpoints, world);
  clean_leftovers(folder / "nowhere", world);
  folder.on_root([&] {
    CHECK(names_in(checkpoints) == std::vector<std::string>{"latest", "step-00000004", "step-00000008"});
  });
  // The same step once more, as after a resume from an older one.
  CHECK(save(checkpoints, world, 8, 88) == next);
  CHECK(num_wrong_after_load(file_in(next), world, 88, split_over(world)) == 0);
  CHECK(num_wrong_after_load(file_in(good), world, 4, split_over(world)) == 0);
  folder.on_root([&] {
    CHECK(names_in(checkpoints) == std::vector<std::string>{"latest", "step-00000004", "step-00000008"});
  });
}

TEST_CASE("a folder that cannot be written is an error on all ranks", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  folder.on_root([&] { write_file(folder / "file", "text"); });
  CHECK_THAT(problem_of<SaveError>(folder.world, [&] { save(folder / "file/checkpoints", folder.world, 1, 1); }),
             ContainsSubstring("file/checkpoints"));
}

TEST_CASE("case-05: a rank that cannot write fails the save on all, and the next one succeeds", "[checkpoint]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  Layout layout = split_over(world);
  layout.big_rows = 2048;  // 2 MiB a group
  const std::string older = save(folder / "c", world, 1, 1, layout);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const int culprit : {0, world.num_ranks() - 1}) {
    INFO("rank " << culprit);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    if (world.rank() == culprit) {
      const rlimit small{512 << 10, before.rlim_max};
      setrlimit(RLIMIT_FSIZE, &small);
    }
    const std::string problem = problem_of<SaveError>(world, [&] { save(folder / "c", world, 2, 2, layout); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(!problem.empty());
    CHECK(resolve_checkpoint("latest", folder / "c", world) == file_in(older));
    folder.on_root([&] { CHECK(names_in(folder / "c") == std::vector<std::string>{"latest", "step-00000001"}); });
    CHECK(num_wrong_after_load(file_in(older), world, 1, layout) == 0);
  }
  CHECK(num_wrong_after_load(file_in(save(folder / "c", world, 2, 2, layout)), world, 2, layout) == 0);
}

TEST_CASE("case-30: on a full disk the save fails with needed and free bytes, older ones stay", "[checkpoint]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  const std::string disk = folder / "disk";
  double is_mounted = 0;
  folder.on_root([&] {
    fs::create_directory(disk);
    is_mounted = mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=3m") == 0;
  });
  if (world.max(is_mounted) == 0) {
    WARN("skipped: this user may not mount a small file system");
    return;
  }
  const std::string older = save(disk, world, 1, 1);
  Layout layout = split_over(world);
  layout.big_rows = 1024;  // 1 MiB a group
  CHECK_THAT(problem_of<SaveError>(world, [&] { save(disk, world, 2, 2, layout); }),
             ContainsSubstring("bytes needed") && ContainsSubstring("free"));
  CHECK(resolve_checkpoint("latest", disk, world) == file_in(older));
  folder.on_root([&] { CHECK(names_in(disk) == std::vector<std::string>{"latest", "step-00000001"}); });
  CHECK(num_wrong_after_load(file_in(older), world, 1, split_over(world)) == 0);
  world.barrier();
  folder.on_root([&] { CHECK(umount2(disk.c_str(), MNT_DETACH) == 0); });
}

TEST_CASE("a tensor that no rank writes in full is not saved", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  Layout layout = split_over(folder.world);
  ++layout.num_parts;  // the last part is nobody's
  CHECK_THROWS_AS(save(folder / "c", folder.world, 1, 1, layout), Error);
  folder.on_root([&] { CHECK(!fs::exists(folder / "c/latest")); });
}

TEST_CASE("secrets of the environment are masked", "[checkpoint][sanitize]") {
  setenv("POTATO_TEST_ApiKey", "hidden-1", 1);
  setenv("POTATO_TEST_PASSWORD_FILE", "hidden-2", 1);
  setenv("POTATO_TEST_A", "shown = 1", 1);
  const std::string text = masked_environment();
  CHECK_THAT(text, ContainsSubstring("POTATO_TEST_ApiKey=***\n") && ContainsSubstring("POTATO_TEST_A=shown = 1\n") &&
                       ContainsSubstring("POTATO_TEST_PASSWORD_FILE=***\n"));
  CHECK(text.find("hidden-") == std::string::npos);
  CHECK(text.find("POTATO_TEST_A=") < text.find("POTATO_TEST_ApiKey="));
  for (const char* name : {"POTATO_TEST_ApiKey", "POTATO_TEST_PASSWORD_FILE", "POTATO_TEST_A"}) unsetenv(name);
}
