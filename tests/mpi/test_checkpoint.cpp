// Checkpoints written by some ranks and read by others, and what can be wrong with a folder.
#include <hdf5.h>
#include <mpi.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "mpi/made_up_model.hpp"
#include "potato/checkpoint/verify.hpp"

using namespace potato;
using namespace potato::test;

TEST_CASE("case-04: saved by any number of ranks, loaded by any other, bitwise", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  std::int64_t step = 0;
  for (const int num_savers : group_sizes(folder.world)) {
    std::string path;
    const std::uint64_t seed = static_cast<std::uint64_t>(++step);
    if (const auto savers = first_ranks(folder.world, num_savers)) path = save(folder / "c", *savers, step, seed);
    path = folder.world.broadcast(path, 0);
    for (const int num_loaders : group_sizes(folder.world)) {
      const auto loaders = first_ranks(folder.world, num_loaders);
      if (!loaders) continue;
      INFO(num_savers << " to " << num_loaders << " ranks");
      CHECK(num_wrong_after_load(path, *loaders, seed, split_over(*loaders)) == 0);
      const Checkpoint checkpoint(path, *loaders);
      const CheckpointInfo& info = checkpoint.info();
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
  const std::string path =
      CheckpointSaver(folder / "c", world, options_of(world, "single")).save(model.groups(), info_at(1));
  CHECK(num_wrong_after_load(path, world, 5, layout) == 0);
}

TEST_CASE("ranks without a parameter take part", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  Layout layout = split_over(folder.world);
  layout.only_first = true;
  const std::string path = save(folder / "c", folder.world, 1, 9, layout);
  CHECK(num_wrong_after_load(path, folder.world, 9, layout) == 0);
  CHECK(num_wrong_after_load(path, folder.world, 9, split_over(folder.world)) == 0);
}

TEST_CASE("fp32 and fp64 checkpoints load into either", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  for (const DType stored : {DType::f32, DType::f64}) {
    Layout layout = split_over(folder.world);
    layout.dtype = stored;
    const std::string path = save(folder / "c", folder.world, 1, 3, layout);
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
    const std::string path = save(folder / "c", folder.world, 1, 1, saved);
    Model model(wanted);
    std::string text =
        problem_of<ConfigError>(folder.world, [&] { Checkpoint(path, folder.world).load(model.groups()); });
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

TEST_CASE("resume: none, latest, a folder of a step or a run, a manifest", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  using Paths = std::vector<std::string>;
  const auto find = [&](const std::string& resume) {
    Paths paths = find_checkpoints(resume, checkpoints, folder.world);
    std::string joined;
    for (const std::string& path : paths) joined += path + "\n";
    for (const std::string& other : folder.world.all_gather(joined)) CHECK(other == joined);
    return paths;
  };
  CHECK(find("none").empty());
  CHECK(find("latest").empty());  // no folder yet
  const std::string older = save(checkpoints, folder.world, 7, 1);
  const std::string newer = save(checkpoints, folder.world, 12, 2);
  CHECK(older == checkpoints + "/step-00000007");
  CHECK(find("none").empty());
  CHECK(find("latest") == Paths{newer, older});
  CHECK(find(older) == Paths{older});
  CHECK(find(older + "/") == Paths{older});
  CHECK(find(older + "/manifest.json") == Paths{older});
  CHECK(find(checkpoints) == Paths{newer, older});
  CHECK(find(folder / "") == Paths{newer, older});
  CHECK_THAT(problem_of<ConfigError>(folder.world, [&] { find(checkpoints + "/step-00000008"); }),
             ContainsSubstring("step-00000008"));
  for (const char* text : {"step-00000007", "step-00000007\n"}) {  // the file decides, not the names of folders
    folder.on_root([&] { write_file(checkpoints + "/latest", text); });
    CHECK(find("latest") == Paths{older, newer});
  }
  for (const char* text : {"", "\n", "step-00000099\n", "../step-00000007\n", "step-0000000x\n", "step-7\n"}) {
    folder.on_root([&] { write_file(checkpoints + "/latest", text); });
    INFO(text);
    CHECK(find("latest") == Paths{newer, older});
  }
  // More digits than the name is padded to.
  const std::string newest = save(checkpoints, folder.world, 1234567890123, 3);
  CHECK(find("latest").front() == newest);
  folder.on_root([&] { fs::remove(checkpoints + "/latest"); });
  CHECK(find("latest").front() == newest);
}

TEST_CASE("case-05: half checkpoints are passed over, removed, and in nobody's way", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  const std::string checkpoints = folder / "c";
  const std::string good = save(checkpoints, world, 4, 4);
  const auto leave_half = [&](const std::string& name) {
    folder.on_root([&] {
      fs::create_directory(checkpoints + "/" + name);
      write_file(checkpoints + "/" + name + "/shard-00000-of-00001.h5", "half");
    });
  };
  leave_half("step-00000008.tmp");
  leave_half("step-00000009.tmp");
  folder.on_root([&] { fs::remove(checkpoints + "/latest"); });
  CHECK(find_checkpoints("latest", checkpoints, world).front() == good);
  const std::string next = save(checkpoints, world, 8, 8);  // over what is left of itself
  CHECK(num_wrong_after_load(next, world, 8, split_over(world)) == 0);
  clean_leftovers(checkpoints, world);
  clean_leftovers(folder / "nowhere", world);
  folder.on_root([&] {
    CHECK(names_in(checkpoints) == std::vector<std::string>{"latest", "step-00000004", "step-00000008"});
  });
  // The same step once more, as after a resume from an older one.
  CHECK(save(checkpoints, world, 8, 88) == next);
  CHECK(num_wrong_after_load(next, world, 88, split_over(world)) == 0);
  CHECK(num_wrong_after_load(good, world, 4, split_over(world)) == 0);
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
    CHECK(find_checkpoints("latest", folder / "c", world).front() == older);
    folder.on_root([&] { CHECK(names_in(folder / "c") == std::vector<std::string>{"latest", "step-00000001"}); });
    CHECK(num_wrong_after_load(older, world, 1, layout) == 0);
  }
  CHECK(num_wrong_after_load(save(folder / "c", world, 2, 2, layout), world, 2, layout) == 0);
}

TEST_CASE("every way to cut and compress files holds the same", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  std::vector<std::string> ways = {"single", "per_node", "per_rank", "1"};
  if (world.num_ranks() > 2) ways.emplace_back(cat(world.num_ranks() - 1));
  for (const std::string& files : ways) {
    for (const int level : {0, 4}) {
      INFO(files << ", deflate " << level);
      SaveOptions options = options_of(world, files, level);
      options.verify = true;
      const std::string path = save(folder / "c", world, 3, 7, split_over(world), options);
      CHECK(num_wrong_after_load(path, world, 7, split_over(world)) == 0);
      CHECK(verify_checkpoint(path, world).problems.empty());
      Layout one;
      if (const auto first = first_ranks(world, 1)) CHECK(num_wrong_after_load(path, *first, 7, one) == 0);
      folder.on_root([&] {
        const auto names = names_in(path);
        const auto num_shards =
            std::count_if(names.begin(), names.end(), [](const std::string& name) { return name.ends_with(".h5"); }) -
            1;
        CHECK(num_shards == options.num_files);
      });
    }
  }
}

TEST_CASE("only the prefixes that are asked for are loaded, and the rest is named", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const std::string path = save(folder / "c", folder.world, 1, 1);
  Layout weights = split_over(folder.world);
  weights.prefixes = {"/model"};
  Model model(weights);
  const LoadReport report = Checkpoint(path, folder.world).load(model.groups(), Checkpoint::Rest::leave_out);
  CHECK(model.num_wrong(1) == 0);
  CHECK(report.left_out.size() == 2 * report.loaded.size());
  CHECK(std::find(report.left_out.begin(), report.left_out.end(), "/optimizer/exp_avg/norm.weight") !=
        report.left_out.end());
}

TEST_CASE("a checkpoint can be moved, and other programs read whole tensors from its index", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  Layout layout = split_over(folder.world);
  const std::string path = save(folder / "c", folder.world, 1, 4, layout);
  const std::string moved = folder / "elsewhere";
  folder.on_root([&] { fs::rename(path, moved); });
  CHECK(num_wrong_after_load(moved, folder.world, 4, layout) == 0);
  folder.on_root([&] {
    Model whole{Layout{}};
    whole.set_values(4);
    for (const TensorGroup& group : whole.groups()) {
      for (const StoredPiece& stored : group.pieces) {
        const std::string name = group.prefix + "/" + stored.piece.name;
        std::vector<float> values(static_cast<std::size_t>(stored.piece.num_elems()), -1);
        const hid_t file = H5Fopen((moved + "/index.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
        const hid_t dataset = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
        CHECK(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
        H5Dclose(dataset);
        H5Fclose(file);
        INFO(name);
        CHECK(std::equal(values.begin(), values.end(), stored.values.as<float>()));
      }
    }
  });
}

TEST_CASE("older checkpoints go only after a new one, and as keep_last and keep_every say", "[checkpoint][sanitize]") {
  const SharedFolder folder;
  const HostGroup& world = folder.world;
  SaveOptions options = options_of(world, "per_rank");
  options.keep_last = 2;
  options.keep_every = 4;
  for (std::int64_t step = 1; step <= 7; ++step) save(folder / "c", world, step, 1, split_over(world), options);
  folder.on_root([&] {
    CHECK(names_in(folder / "c") ==
          std::vector<std::string>{"latest", "step-00000004", "step-00000006", "step-00000007"});
  });
  // After going back, what was saved later is not older.
  save(folder / "c", world, 5, 1, split_over(world), options);
  folder.on_root([&] {
    CHECK(names_in(folder / "c") ==
          std::vector<std::string>{"latest", "step-00000004", "step-00000005", "step-00000006", "step-00000007"});
  });
  CHECK(find_checkpoints("latest", folder / "c", world).front() == folder / "c/step-00000005");
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
  CHECK(find_checkpoints("latest", disk, world).front() == older);
  folder.on_root([&] { CHECK(names_in(disk) == std::vector<std::string>{"latest", "step-00000001"}); });
  CHECK(num_wrong_after_load(older, world, 1, split_over(world)) == 0);
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
