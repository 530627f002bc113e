// Follows a schedule on one stage: receives, runs passes, sends. Knows nothing of what a layer is.
#pragma once

#include <span>
#include <vector>

#include "potato/comm/communicator.hpp"
#include "potato/device/stream.hpp"
#include "potato/pipeline/schedule.hpp"
#include "potato/tensor/tensor.hpp"

namespace potato {

// What the executor runs: the layers of this stage, chunk by chunk. Implemented by the model.
class StageProgram {
 public:
  virtual ~StageProgram() = default;
  // Memory for an activation or gradient that arrives from another stage.
  virtual Tensor make_boundary(int micro_batch) = 0;
  // `input` is empty on the first virtual stage; the result is empty on the last.
  virtual Tensor forward(int chunk, int micro_batch, Tensor input) = 0;
  // `output_gradient` is empty on the last virtual stage; the result is empty on the first.
  virtual Tensor backward(int chunk, int micro_batch, Tensor output_gradient) = 0;
};

// Enqueues everything on `stream` and returns; nothing is waited for on the host. Collective along the pipeline axis:
// each stage runs its own list of one schedule. Sends hold their tensor until the channel's next send (capacity of the
// checker), so all memory is back in the arena when run() returns.
class PipelineExecutor {
 public:
  PipelineExecutor(Communicator& pipeline, Stream& stream, int num_chunks);

  void run(std::span<const Pass> passes, StageProgram& program);

 private:
  struct Channel {
    Transfer transfer;
    Tensor in_flight;
  };

  int virtual_stage(int chunk) const { return chunk * pipeline_.num_ranks() + pipeline_.rank(); }
  Tensor receive(PassKind kind, int chunk, int from_virtual_stage, int micro_batch, StageProgram& program);
  void send(PassKind kind, int chunk, int to_virtual_stage, Tensor tensor);
  void finish(Channel& channel);

  Communicator& pipeline_;
  Stream& stream_;
  int num_chunks_;
  std::vector<Channel> sends_;  // [kind, chunk]
  Transfer receive_;
};

}  // namespace potato
