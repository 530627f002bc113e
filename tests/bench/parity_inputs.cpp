// Writes what another program needs to repeat a run: the initial weights, as a checkpoint of step 0 in run.dir, and the
// tokens and targets of every step.
//
//   parity_inputs CONFIG.ini OUT.bin [--section.key=value ...]
//
// OUT.bin: int32, [train.steps, global_batch_size, 2, sequence_length]; [.., 0, :] tokens, [.., 1, :] targets. One
// rank, CPU; see scripts/torch_parity.py.
#include <cstdio>
#include <memory>
#include <vector>

#include "potato/comm/mpi_session.hpp"
#include "potato/train/trainer.hpp"

namespace {

using namespace potato;

void write_batches(const Config& config, const char* path) {
  DatasetOptions options;
  options.path = config.data.path;
  options.tokenizer = config.data.tokenizer;
  options.cache_dir = config.data.cache_dir;
  options.validation_fraction = config.data.validation_fraction;
  options.sequence_length = config.train.sequence_length;
  options.vocab_size = config.model.vocab_size;
  options.seed = static_cast<std::uint64_t>(config.run.seed);
  const Dataset data = Dataset::open(options);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "wb"), std::fclose);
  if (!file) throw IoError(cat("cannot write ", path));
  const std::int64_t length = config.train.sequence_length;
  std::vector<std::int32_t> sample(static_cast<std::size_t>(2 * length));
  for (std::int64_t i = 0; i < config.train.steps * config.train.global_batch_size; ++i) {
    data.train().fill(i, sample.data(), sample.data() + length);
    if (std::fwrite(sample.data(), sizeof(std::int32_t), sample.size(), file.get()) != sample.size()) {
      throw IoError(cat("cannot write ", path));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MpiSession session(&argc, &argv);
  try {
    if (argc < 3) throw Error("usage: parity_inputs CONFIG.ini OUT.bin [--section.key=value ...]");
    std::vector<const char*> arguments = {argv[0], argv[1]};
    arguments.insert(arguments.end(), argv + 3, argv + argc);
    const Invocation invocation = parse_command_line(static_cast<int>(arguments.size()), arguments.data());
    Config config = load_config(invocation.config_path, invocation.overrides);
    config.run.device = DeviceChoice::cpu;
    config.run.threads = std::max<std::int64_t>(1, config.run.threads);
    config.precision.dtype = Precision::fp32;
    const HostGroup world(MPI_COMM_WORLD);
    Trainer trainer(config, world, {"parity_inputs", "", true, {}});
    if (!trainer.save()) throw Error("the initial weights could not be saved");
    write_batches(trainer.config(), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_inputs: %s\n", error.what());
    return 1;
  }
  return 0;
}
