#include "potato/pipeline/executor.hpp"

namespace potato {

namespace {

// One tag per kind and destination chunk, so that each channel is first in, first out.
int tag_of(PassKind kind, int chunk) { return 2 * chunk + (kind == PassKind::forward ? 0 : 1); }

}  // namespace

PipelineExecutor::PipelineExecutor(Communicator& pipeline, Stream& stream, int num_chunks)
    : pipeline_(pipeline), stream_(stream), num_chunks_(num_chunks), sends_(static_cast<std::size_t>(2 * num_chunks)) {}

Tensor PipelineExecutor::receive(PassKind kind, int chunk, int from_virtual_stage, int micro_batch,
                                 StageProgram& program) {
  Tensor tensor = program.make_boundary(micro_batch);
  pipeline_.receive(tensor, from_virtual_stage % pipeline_.num_ranks(), tag_of(kind, chunk), receive_, stream_);
  pipeline_.wait(receive_, stream_);
  return tensor;
}

void PipelineExecutor::finish(Channel& channel) {
  if (!channel.in_flight.is_held()) return;
  pipeline_.wait(channel.transfer, stream_);
  channel.in_flight.reset();
}

void PipelineExecutor::send(PassKind kind, int chunk, int to_virtual_stage, Tensor tensor) {
  const int to_chunk = to_virtual_stage / pipeline_.num_ranks();
  Channel& channel = sends_[static_cast<std::size_t>(tag_of(kind, chunk))];
  finish(channel);
  channel.in_flight = std::move(tensor);
  pipeline_.send(channel.in_flight, to_virtual_stage % pipeline_.num_ranks(), tag_of(kind, to_chunk), channel.transfer,
                 stream_);
}

void PipelineExecutor::run(std::span<const Pass> passes, StageProgram& program) {
  const int last_virtual_stage = num_chunks_ * pipeline_.num_ranks() - 1;
  for (const Pass& pass : passes) {
    const int here = virtual_stage(pass.chunk);
    if (pass.kind == PassKind::forward) {
      Tensor input = here > 0 ? receive(pass.kind, pass.chunk, here - 1, pass.micro_batch, program) : Tensor();
      Tensor output = program.forward(pass.chunk, pass.micro_batch, std::move(input));
      if (here < last_virtual_stage) send(pass.kind, pass.chunk, here + 1, std::move(output));
    } else {
      PC_CHECK(pass.kind == PassKind::backward, "split weight-gradient passes have no program here");
      Tensor gradient =
          here < last_virtual_stage ? receive(pass.kind, pass.chunk, here + 1, pass.micro_batch, program) : Tensor();
      Tensor input_gradient = program.backward(pass.chunk, pass.micro_batch, std::move(gradient));
      if (here > 0) send(pass.kind, pass.chunk, here - 1, std::move(input_gradient));
    }
  }
  for (Channel& channel : sends_) finish(channel);
}

}  // namespace potato
