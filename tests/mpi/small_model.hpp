// A small model on a sub-communicator: trains a few steps and gives back everything that the oracle compares.
#pragma once

#include <mpi.h>

#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "potato/comm/host_group.hpp"
#include "potato/comm/mpi_check.hpp"
#include "potato/comm/process_grid.hpp"
#include "potato/core/philox.hpp"
#include "potato/optim/learning_rate.hpp"
#include "potato/train/engine.hpp"

namespace potato::test {

struct RunResult {
  std::vector<double> losses;
  std::vector<double> norms;
  double eval_loss = 0;
  std::map<std::string, std::vector<double>> weights;  // by logical tensor, whole
};

// A sub-communicator of the first `num_ranks` ranks; MPI_COMM_NULL elsewhere.
class SubCommunicator {
 public:
  explicit SubCommunicator(int num_ranks) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank < num_ranks ? 0 : MPI_UNDEFINED, rank, &comm_);
    if (comm_ != MPI_COMM_NULL) MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~SubCommunicator() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  SubCommunicator(const SubCommunicator&) = delete;
  SubCommunicator& operator=(const SubCommunicator&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

inline Config small_config() {
  Config config;
  config.run.threads = 1;
  config.run.seed = 42;
  config.data.path = "synthetic";  // batches are made here
  config.model.num_layers = 5;
  config.model.hidden_size = 32;
  config.model.num_heads = 8;
  config.model.ffn_hidden_size = 128;
  config.model.max_position_embeddings = 16;
  config.model.vocab_size = 257;
  config.model.dropout = 0.1;
  config.train.steps = 12;
  config.train.sequence_length = 16;
  config.train.global_batch_size = 16;
  config.train.micro_batch_size = 2;
  config.zero.reduce_bucket_size = 10000;  // several buckets
  config.optimizer.learning_rate = 1e-3;
  config.optimizer.warmup_steps = 3;
  config.precision.dtype = Precision::fp64;
  return config;
}

// Token `position` of sample `sample`: skewed, so that there is something to learn.
inline std::int32_t token_at(std::int64_t sample, std::int64_t position, std::int64_t vocab_size) {
  const std::uint32_t bits = philox_u32(philox_key(9, "tokens"), RandomDomain::test, static_cast<std::uint64_t>(sample),
                                        static_cast<std::uint32_t>(position), 0);
  const double u = uniform_from_u32(bits);
  return static_cast<std::int32_t>(u * u * static_cast<double>(vocab_size));
}

// Targets that count in a sample: differs much between samples (case-13).
inline std::int64_t num_counted(std::int64_t sample, std::int64_t length) { return 1 + (sample * 7 + 3) % length; }

inline void fill(Engine& engine, const Config& config, int buffer, std::int64_t first_sample) {
  const Engine::BatchBuffer batch = engine.batch_buffer(buffer);
  const std::int64_t length = config.train.sequence_length;
  for (std::int64_t row = 0; row < engine.num_micro_batches() * config.train.micro_batch_size; ++row) {
    const std::int64_t sample = engine.sample_of_row(first_sample, row);
    for (std::int64_t t = 0; t < length; ++t) {
      batch.tokens[row * length + t] = token_at(sample, t, config.model.vocab_size);
      batch.targets[row * length + t] =
          t < num_counted(sample, length) ? token_at(sample, t + 1, config.model.vocab_size) : -1;
    }
  }
}

inline std::int64_t counted_targets(const Config& config, std::int64_t first_sample) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < config.train.global_batch_size; ++i) {
    count += num_counted(first_sample + i, config.train.sequence_length);
  }
  return count;
}

inline std::unique_ptr<Engine> make_engine(const Config& config, MPI_Comm comm) {
  int num_ranks = 1;
  int rank = 0;
  PC_MPI(MPI_Comm_size(comm, &num_ranks));
  PC_MPI(MPI_Comm_rank(comm, &rank));
  const GridShape shape = derive_grid(config, num_ranks);
  if constexpr (with_cuda) {
    // Tests of several ranks share one GPU.
    if (config.run.device == DeviceChoice::cuda) {
      const Device device{DeviceKind::cuda, 0};
      GpuCommOptions options;
      options.num_chunks = static_cast<int>(config.parallel.virtual_chunks);
      options.message_bytes = boundary_bytes(config, shape);
      return std::make_unique<Engine>(config, make_gpu_communicators(comm, shape, device, Transport::staged, options),
                                      device, planned_bytes(config, shape, rank, device.kind),
                                      std::function<void(std::exception_ptr)>());
    }
  }
  return std::make_unique<Engine>(config, make_mpi_communicators(comm, shape), Device{DeviceKind::cpu, 0},
                                  planned_bytes(config, shape, rank), std::function<void(std::exception_ptr)>());
}

inline StepResult step(Engine& engine, const Config& config, std::int64_t index) {
  const std::int64_t first_sample = index * config.train.global_batch_size;
  fill(engine, config, static_cast<int>(index % 2), first_sample);
  engine.enqueue_step(static_cast<int>(index % 2), first_sample, counted_targets(config, first_sample),
                      learning_rate_at(config.optimizer, config.train.steps, index), index + 1);
  return engine.finish_step();
}

// Whole logical tensors of what a checkpoint would hold, on all ranks of `comm`.
inline std::map<std::string, std::vector<double>> gather(const TensorGroup& group, MPI_Comm comm) {
  // Sizes and order of all logical tensors: every rank's pieces, agreed by gathering names through a fixed-size table.
  std::map<std::string, std::vector<double>> tensors;
  std::string mine;
  for (const StoredPiece& stored : group.pieces) {
    mine += stored.piece.name + " " + std::to_string(stored.piece.shape.num_elems()) + "\n";
  }
  for (const auto& text : HostGroup(comm).all_gather(mine)) {
    std::istringstream in(text);
    std::string name;
    std::int64_t num_elems = 0;
    while (in >> name >> num_elems) {
      tensors.try_emplace(name, std::vector<double>(static_cast<std::size_t>(num_elems), 0.0));
    }
  }
  for (const StoredPiece& stored : group.pieces) {
    if (!stored.is_written) continue;
    const Piece& piece = stored.piece;
    auto& whole = tensors.at(piece.name);
    const std::int64_t width = piece.shape.num_dims() == 2 ? piece.shape[1] : 1;
    dispatch_real(stored.values.dtype, [&](auto zero) {
      const auto* values = stored.values.as<decltype(zero)>();
      for (std::int64_t row = 0; row < piece.count[0]; ++row) {
        for (std::int64_t column = 0; column < piece.count[1]; ++column) {
          whole[static_cast<std::size_t>((piece.begin[0] + row) * width + piece.begin[1] + column)] +=
              static_cast<double>(values[row * piece.count[1] + column]);
        }
      }
    });
  }
  for (auto& [name, values] : tensors) {
    PC_MPI(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_SUM, comm));
  }
  return tensors;
}

// Trains config.train.steps steps on `comm`. Collective.
inline RunResult train(const Config& config, MPI_Comm comm) {
  const auto engine = make_engine(config, comm);
  RunResult result;
  for (std::int64_t i = 0; i < config.train.steps; ++i) {
    const StepResult step_result = step(*engine, config, i);
    result.losses.push_back(step_result.loss);
    result.norms.push_back(step_result.grad_norm);
  }
  fill(*engine, config, 0, 1000);
  result.eval_loss = engine->evaluate(0, 1000) / static_cast<double>(counted_targets(config, 1000));
  result.weights = gather(engine->fetch_state()[0], comm);
  return result;
}

}  // namespace potato::test
