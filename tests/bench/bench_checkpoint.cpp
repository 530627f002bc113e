// mpirun -np N bench_checkpoint FOLDER MEGABYTES: how fast checkpoints are written (to the disk, synced) and read,
// beside plain write() and read() of the same bytes in the same run, in turns. Reads are from the disk (pages dropped
// before) and from the page cache. Rows of a table in Markdown; `make bench-checkpoint` runs it for 1, 2 and 8 ranks.
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "potato/checkpoint/load.hpp"
#include "potato/checkpoint/save.hpp"
#include "potato/comm/mpi_session.hpp"
#include "potato/config/config.hpp"
#include "potato/core/clock.hpp"
#include "potato/core/posix_file.hpp"

namespace {

using namespace potato;
namespace fs = std::filesystem;

constexpr int num_warm_rounds = 2;  // fresh page cache of a virtual machine is slow, whoever writes into it
constexpr int num_rounds = 5;
constexpr std::int64_t columns = 1024;
constexpr std::int64_t tensor_rows = 2048;  // 8 MiB a tensor

// This rank's part of a model of so many bytes: whole tensors of its own, as ZeRO's shards mostly are.
class State {
 public:
  State(std::int64_t num_bytes, int rank, int num_ranks)
      : values_(static_cast<std::size_t>(num_bytes / num_ranks / 4 / (tensor_rows * columns)) * tensor_rows * columns) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>((i * 2654435761U + static_cast<std::size_t>(rank)) % 1000003) * 1e-6F;
    }
    group_.prefix = "/model";
    const auto num_tensors = static_cast<std::int64_t>(values_.size()) / (tensor_rows * columns);
    for (std::int64_t i = 0; i < num_tensors; ++i) {
      Piece piece{cat("rank", rank, ".tensor", i), {tensor_rows, columns}, {0, 0}, {tensor_rows, columns}};
      float* data = values_.data() + i * tensor_rows * columns;
      group_.pieces.push_back({piece, {data, DType::f32, {tensor_rows * columns}, {DeviceKind::cpu, 0}}, true});
    }
  }

  std::span<const TensorGroup> groups() const { return {&group_, 1}; }
  char* bytes() { return reinterpret_cast<char*>(values_.data()); }
  std::int64_t num_bytes() const { return static_cast<std::int64_t>(values_.size() * sizeof(float)); }
  std::vector<float>& values() { return values_; }

 private:
  std::vector<float> values_;
  TensorGroup group_;
};

// Seconds of the slowest rank.
double timed(const HostGroup& world, const std::function<void()>& work) {
  world.barrier();
  const double start_s = now_s();
  work();
  return world.max(now_s() - start_s);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void plain_write(const std::string& path, State& state) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (!file.is_open()) throw IoError(cat("cannot open ", path));
  write_all(file, path, state.bytes(), static_cast<std::size_t>(state.num_bytes()));
  if (::fsync(file.get()) != 0) throw IoError(cat("cannot sync ", path));
}

// The next reads of these files come from the disk.
void drop_pages(const std::string& path) {
  std::error_code error;
  const auto drop = [](const fs::path& file) {
    const FileDescriptor in = open_for_reading(file.string());
    ::posix_fadvise(in.get(), 0, 0, POSIX_FADV_DONTNEED);
  };
  if (fs::is_regular_file(path, error)) return drop(path);
  for (const auto& entry : fs::directory_iterator(path)) drop(entry.path());
}

struct Seconds {
  std::vector<double> ours;
  std::vector<double> plain;
};

SaveOptions options_of(const HostGroup& world, const std::string& files, int level) {
  const std::vector<std::string> hosts(static_cast<std::size_t>(world.num_ranks()), "host");
  const CheckpointFile file = checkpoint_file(files, hosts, world.rank());
  SaveOptions options;
  options.file = file.file;
  options.num_files = file.num_files;
  options.deflate_level = level;
  return options;
}

void bench_files(const HostGroup& world, const std::string& folder, State& state) {
  const double gigabytes = world.sum(static_cast<double>(state.num_bytes())) * 1e-9;
  const std::string plain_path = cat(folder, "/plain-", world.rank());
  const std::vector<float> expected = state.values();
  struct Way {
    std::string files;
    int level;
  };
  const std::vector<Way> ways = {{"per_rank", 0}, {"single", 0}, {"2", 0}, {"per_rank", 1}};
  for (const Way& way : ways) {
    if (way.files == "2" && world.num_ranks() < 4) continue;
    if (way.files == "single" && world.num_ranks() == 1) continue;
    const CheckpointSaver saver(folder + "/checkpoints", world, options_of(world, way.files, way.level));
    Seconds write;
    Seconds read;
    Seconds cached;
    const int rounds = way.level > 0 ? 1 : num_rounds;
    for (int round = way.level > 0 ? 0 : -num_warm_rounds; round < rounds; ++round) {
      if (round == 0) write = read = cached = {};
      write.plain.push_back(timed(world, [&] { plain_write(plain_path, state); }));
      std::string path;
      write.ours.push_back(timed(world, [&] { path = saver.save(state.groups(), CheckpointInfo{}); }));
      for (Seconds* seconds : {&cached, &read}) {
        world.barrier();
        if (seconds == &read) drop_pages(plain_path);
        if (seconds == &read && world.rank() == 0) drop_pages(path);
        seconds->plain.push_back(timed(
            world, [&] { read_at(open_for_reading(plain_path), plain_path, state.bytes(), 0, state.num_bytes()); }));
        std::memset(state.bytes(), 0, static_cast<std::size_t>(state.num_bytes()));
        seconds->ours.push_back(timed(world, [&] { Checkpoint(path, world).load(state.groups()); }));
        PC_CHECK(state.values() == expected, "the values that came back are others");
      }
    }
    if (world.rank() == 0) {
      std::printf("| %d | %s%s |", world.num_ranks(), way.files.c_str(), way.level > 0 ? ", deflate(1)" : "");
      for (const Seconds* seconds : {&write, &read, &cached}) {
        const double ours_s = median(seconds->ours);
        const double plain_s = median(seconds->plain);
        std::printf(" %.2f | %.2f | %.2f |", gigabytes / ours_s, gigabytes / plain_s, plain_s / ours_s);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  fs::remove(plain_path);
}

}  // namespace

int main(int argc, char** argv) {
  prepare_for_oversubscription(read_launch_facts(), 1);
  MpiSession session(&argc, &argv);
  try {
    if (argc != 3) throw Error("usage: bench_checkpoint FOLDER MEGABYTES");
    const HostGroup world(MPI_COMM_WORLD);
    const std::string folder = argv[1];
    world.run_agreed([&] {
      if (world.rank() == 0) fs::create_directories(folder);
    });
    State state(std::atoll(argv[2]) * 1'000'000, world.rank(), world.num_ranks());
    bench_files(world, folder, state);
    world.barrier();
    if (world.rank() == 0) fs::remove_all(folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_checkpoint: %s\n", error.what());
    return 1;
  }
  return 0;
}
