// What loading and verifying say of checkpoints that are not as they were written.
#include <hdf5.h>
#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "mpi/made_up_model.hpp"
#include "potato/checkpoint/verify.hpp"
#include "potato/core/philox.hpp"
#include "potato/core/xxh3.hpp"

using namespace potato;
using namespace potato::test;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void flip_byte(const std::string& path, std::size_t place) {
  std::string bytes = read_file(path);
  bytes.at(place) = static_cast<char>(bytes.at(place) ^ 0x10);
  write_bytes(path, bytes);
}

// Gives a manifest that was changed its right hash again.
std::string with_right_hash(std::string text) {
  constexpr std::size_t head = 9;  // {"xxh3":"
  constexpr std::size_t digits = 16;
  if (text.size() < head + digits) return text;
  return text.replace(head, digits, hash_text(xxh3(std::string_view(text).substr(head + digits))));
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t place = text.find(what);
  PC_CHECK(place != std::string::npos, what);
  return text.replace(place, what.size(), with);
}

}  // namespace

TEST_CASE("each kind of damage has its message on all ranks, and nothing is loaded", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  Layout layout = split_over(world);
  layout.big_rows = 64 * world.num_ranks();
  for (const int level : {0, 3}) {
    const std::string good = save(folder / "c", world, 1, 1, layout, options_of(world, "per_rank", level));
    const std::string bad = folder / "bad";
    const std::string shard = bad + "/" + cat("shard-00000-of-0000", world.num_ranks(), ".h5");
    const std::string manifest = bad + "/manifest.json";
    const auto problem = [&](const std::string& what, const std::function<void()>& damage) {
      folder.on_root([&] {
        fs::remove_all(bad);
        fs::copy(good, bad);
        damage();
      });
      INFO(what << ", deflate " << level);
      Model model(layout);
      std::string text = problem_of<ConfigError>(world, [&] { Checkpoint(bad, world).load(model.groups()); });
      CHECK_THAT(text, ContainsSubstring(bad));
      const VerifyReport report = verify_checkpoint(bad, world);
      REQUIRE(!report.problems.empty());
      CHECK_THAT(report.problems.front(), ContainsSubstring(bad));
      return text;
    };
    CHECK_THAT(problem("a byte of a tensor",
                       [&] {
                         const std::string bytes = read_file(shard);
                         flip_byte(shard, bytes.size() - 2000);
                       }),
               ContainsSubstring("is damaged") && ContainsSubstring("shard-00000") && ContainsSubstring("hash is"));
    CHECK_THAT(problem("a byte of HDF5's own", [&] { flip_byte(shard, 20); }),
               ContainsSubstring("is damaged") && ContainsSubstring("bytes 0 to"));
    CHECK_THAT(problem("cut", [&] { fs::resize_file(shard, fs::file_size(shard) / 2); }),
               ContainsSubstring("bytes") && ContainsSubstring("were written"));
    CHECK_THAT(problem("longer", [&] { fs::resize_file(shard, fs::file_size(shard) + 1); }),
               ContainsSubstring("were written"));
    CHECK_THAT(problem("no shard", [&] { fs::remove(shard); }), ContainsSubstring("No such file"));
    CHECK_THAT(problem("no manifest", [&] { fs::remove(manifest); }), ContainsSubstring("manifest.json is missing"));
    CHECK_THAT(problem("an empty manifest", [&] { write_bytes(manifest, ""); }),
               ContainsSubstring("does not begin with its own hash"));
    CHECK_THAT(problem("a byte of the manifest", [&] { flip_byte(manifest, 300); }), ContainsSubstring("its hash is"));
    CHECK_THAT(problem("half a manifest", [&] { fs::resize_file(manifest, fs::file_size(manifest) / 2); }),
               ContainsSubstring("its hash is"));
    CHECK_THAT(problem("a newer format",
                       [&] {
                         write_bytes(manifest, with_right_hash(replaced(read_file(manifest), "\"format_version\":3",
                                                                        "\"format_version\":4")));
                       }),
               ContainsSubstring("has format 4, this program reads format 3; a newer potatochat wrote it"));
    CHECK_THAT(problem("a file of elsewhere",
                       [&] {
                         write_bytes(manifest, with_right_hash(replaced(read_file(manifest), "\"name\":\"shard",
                                                                        "\"name\":\"../c/shard")));
                       }),
               ContainsSubstring("is no file name"));
    if (world.num_ranks() > 1) {
      const std::string other = bad + "/" + cat("shard-00001-of-0000", world.num_ranks(), ".h5");
      CHECK_THAT(problem("two shards changed places",
                         [&] {
                           fs::rename(shard, bad + "/x");
                           fs::rename(other, shard);
                           fs::rename(bad + "/x", other);
                         }),
                 ContainsSubstring("is damaged"));
    }
  }
}

TEST_CASE("a missing index is no obstacle to loading, but verify says it", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const std::string path = save(folder / "c", folder.world, 1, 1);
  folder.on_root([&] { fs::remove(path + "/index.h5"); });
  CHECK_THAT(Checkpoint(path, folder.world).index_problem(), ContainsSubstring("index.h5 is missing"));
  CHECK(num_wrong_after_load(path, folder.world, 1, split_over(folder.world)) == 0);
  CHECK_THAT(verify_checkpoint(path, folder.world).problems.front(), ContainsSubstring("only other programs need it"));
}

TEST_CASE("files without a manifest are named for what they are", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  const auto problem = [&](const std::string& path) {
    return problem_of<ConfigError>(world, [&] { const Checkpoint checkpoint(path, world); });
  };
  const std::string path = folder / "file.h5";
  CHECK_THAT(problem(path), ContainsSubstring("does not exist"));
  for (const char* text : {"", "x", "\211HDF\r\n\032\n", "this is no checkpoint, but a text that goes on a little"}) {
    folder.on_root([&] { write_file(path, text); });
    CHECK_THAT(problem(path), ContainsSubstring("is no HDF5 file, or damaged"));
  }
  folder.on_root([&] { H5Fclose(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)); });
  CHECK_THAT(problem(path), ContainsSubstring("is an HDF5 file with 1 objects, but no checkpoint"));
  // As the second format was: one file, which says so.
  folder.on_root([&] {
    fs::create_directory(folder / "old");
    const hid_t file = H5Fcreate((folder / "old/checkpoint.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, "format_version", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    const std::int64_t format = 2;
    H5Awrite(attribute, H5T_NATIVE_INT64, &format);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Fclose(file);
  });
  CHECK_THAT(problem(folder / "old"), ContainsSubstring("of a checkpoint of format 2, without its manifest.json"));
}

// 2,000 mutations of a small checkpoint on one rank: each is refused or, where it changed nothing that counts, loaded
// right.
TEST_CASE("mutated checkpoints are never loaded wrong", "[checkpoint][sanitize][fuzz]") {
  const SharedFolder folder;
  const auto alone = first_ranks(folder.world, 1);
  if (!alone) return;
  constexpr std::uint64_t num_mutations = 2000;
  const std::string bad = folder / "bad";
  std::vector<std::string> originals;
  std::vector<std::string> names;
  const auto prepare = [&](int level) {
    const std::string good =
        save(folder / cat("c", level), *alone, 1, 1, Layout{}, options_of(*alone, "single", level));
    fs::remove_all(bad);
    fs::copy(good, bad);
    names = {"manifest.json", "shard-00000-of-00001.h5"};
    originals.clear();
    for (const std::string& name : names) originals.push_back(read_file(cat(good, "/", name)));
  };
  std::uint64_t num_refused = 0;
  std::uint64_t num_loaded = 0;
  for (std::uint64_t i = 0; i < num_mutations; ++i) {
    if (i % 1000 == 0) prepare(i == 0 ? 0 : 2);
    auto draw = [&, n = std::uint32_t{0}](std::size_t limit) mutable {
      return static_cast<std::size_t>(philox_u32(philox_key(5, "fuzz"), RandomDomain::test, i, n++, 0)) % limit;
    };
    const std::size_t which = draw(2);
    std::string bytes = originals[which];
    for (std::size_t left = 1 + draw(3); left > 0; --left) {
      const std::size_t place = draw(bytes.size());
      switch (draw(5)) {
        case 0:
          bytes[place] = static_cast<char>(bytes[place] ^ (1 << draw(8)));
          break;
        case 1:
          bytes[place] = static_cast<char>(draw(256));
          break;
        case 2:
          bytes.resize(place + 1);
          break;
        case 3:
          bytes.erase(place, 1 + draw(40));
          break;
        default:
          bytes.insert(place, bytes.substr(draw(bytes.size()), 1 + draw(40)));
      }
      if (bytes.empty()) bytes = "x";
    }
    // Half of the changed manifests get a right hash, so that what stands behind it is tried too.
    if (which == 0 && draw(2) == 0) bytes = with_right_hash(bytes);
    write_bytes(bad + "/" + names[which], bytes);
    std::int64_t num_wrong = 0;
    try {
      num_wrong = num_wrong_after_load(bad, *alone, 1, Layout{});
      ++num_loaded;
    } catch (const ConfigError&) {
      ++num_refused;
    }
    INFO("mutation " << i << " of " << names[which]);
    CHECK(num_wrong == 0);
    write_bytes(bad + "/" + names[which], originals[which]);
  }
  CHECK(num_refused + num_loaded == num_mutations);
  CHECK(num_refused > num_mutations / 2);
}
