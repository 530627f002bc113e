#include "start_table.hpp"

#include <dnnl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "bytes_text.hpp"
#include "potato/comm/nccl_communicator.hpp"
#include "potato/comm/process_grid.hpp"
#include "potato/core/version.hpp"
#include "potato/kernels/libraries.hpp"
#include "potato/model/stage.hpp"
#include "potato/pipeline/schedule.hpp"

namespace potato {

namespace {

std::string groups_text(const GridShape& shape, Axis axis) {
  std::string text;
  const auto num_ranks = static_cast<int>(shape.data * shape.tensor * shape.pipeline);
  int num_groups = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::vector<int> group = grid_group(shape, rank, axis);
    if (group.front() != rank) continue;
    if (++num_groups > 8) return text + "...";
    text += "{";
    for (std::size_t i = 0; i < group.size(); ++i) text += cat(i > 0 ? " " : "", group[i]);
    text += "} ";
  }
  return text;
}

// Maximum over ranks of each owner's bytes.
OwnerBytes largest(const HostGroup& world, const OwnerBytes& bytes) {
  OwnerBytes result{};
  for (std::size_t i = 0; i < bytes.size(); ++i) result[i] = world.max(bytes[i]);
  return result;
}

std::string zero_text(const Config& config, const GridShape& shape) {
  static constexpr const char* split[] = {"nothing is split", "master weights and moments are split",
                                          "master weights, moments and gradients are split",
                                          "master weights, moments, gradients and parameters are split"};
  const ZeroConfig& zero = config.zero;
  std::string text = cat("stage ", zero.stage, ": ", split[zero.stage], " over ", shape.data, " data rank(s)");
  if (zero.offload_optimizer == OffloadTarget::cpu)
    text += "; master weights and moments lie and are updated in host memory";
  if (zero.offload_param == OffloadTarget::cpu) text += "; parameters lie in host memory";
  return text + (zero.overlap_comm ? "" : "; no overlap of communication");
}

}  // namespace

std::string numerics_fingerprint(const Config& config, const GridShape& shape, const GpuTopology* gpus) {
  const std::string common =
      cat(to_text(config.precision.dtype), ", ZeRO stage ", config.zero.stage, ", offload ",
          to_text(config.zero.offload_optimizer), ", gradients summed in ", to_text(config.precision.gradient_dtype),
          ", grid ", shape.data, "x", shape.tensor, "x", shape.pipeline, ", micro-batch ",
          config.train.micro_batch_size, ", ", mpi_library_version());
  if (gpus != nullptr) {
    std::string nccl;
    if constexpr (with_cuda) nccl = gpus->transport == Transport::nccl ? ", " + nccl_settings() : "";
    return cat(gpus->place.name, ", ", common, nccl, ", ", transport_name(gpus->transport), ", attention ",
               to_text(config.kernels.attention), ", deterministic ", config.run.deterministic, ", ",
               cuda_library_versions());
  }
  const dnnl_version_t* version_of = dnnl_version();
  return cat("cpu, ", common, ", threads ", config.run.threads, ", oneDNN ", version_of->major, ".", version_of->minor,
             ".", version_of->patch, " isa ", static_cast<int>(dnnl_get_effective_cpu_isa()));
}

void print_start_table(const Config& config, const HostGroup& world, const Topology& topology,
                       const StartFacts& facts) {
  const std::vector<std::string> holds = world.all_gather(facts.holds);
  const std::vector<std::string> devices = world.all_gather(facts.device);
  const OwnerBytes planned = largest(world, facts.planned);
  if (world.rank() != 0) return;
  const GridShape& shape = facts.shape;
  std::printf("PotatoChat  %s (%s), %s\n", std::string(version()).c_str(), std::string(git_commit()).c_str(),
              mpi_library_version().c_str());
  std::printf("ranks       %d on %d host(s), %lld thread(s) each, transport %s\n", world.num_ranks(),
              topology.num_hosts(), static_cast<long long>(config.run.threads), facts.transport.c_str());
  if (!facts.binding.empty()) std::printf("cores       of rank 0: %s\n", facts.binding.c_str());
  std::printf("grid        data %lld x tensor %lld x pipeline %lld; sequence parallelism %s\n",
              static_cast<long long>(shape.data), static_cast<long long>(shape.tensor),
              static_cast<long long>(shape.pipeline), config.parallel.sequence ? "on" : "off");
  std::size_t width = 6;
  for (const std::string& device : devices) width = std::max(width, device.size());
  std::printf("  rank  host              %-*s  data  tensor  pipeline  holds\n", static_cast<int>(width), "device");
  for (int rank = 0; rank < world.num_ranks(); ++rank) {
    if (rank >= 64) {
      std::printf("  ... %d more\n", world.num_ranks() - rank);
      break;
    }
    const GridCoordinates at = grid_coordinates(shape, rank);
    const auto index = static_cast<std::size_t>(rank);
    std::printf("  %4d  %-16s  %-*s  %4d  %6d  %8d  %s\n", rank, topology.host_of_rank[index].c_str(),
                static_cast<int>(width), devices[index].c_str(), at.data, at.tensor, at.pipeline, holds[index].c_str());
  }
  std::printf("  groups    tensor %s| data %s| pipeline %s\n", groups_text(shape, Axis::tensor).c_str(),
              groups_text(shape, Axis::data).c_str(), groups_text(shape, Axis::pipeline).c_str());
  const std::int64_t micro_batches = num_micro_batches(config, shape);
  if (config.zero.stage > 0 || config.zero.offload_optimizer != OffloadTarget::none) {
    std::printf("zero        %s\n", zero_text(config, shape).c_str());
  }
  std::printf("model       %s, %lld layers, %lld wide, %lld heads, vocabulary %lld: %lld parameters, %s\n",
              config.model.family.c_str(), static_cast<long long>(config.model.num_layers),
              static_cast<long long>(config.model.hidden_size), static_cast<long long>(config.model.num_heads),
              static_cast<long long>(config.model.vocab_size),
              static_cast<long long>(num_model_parameters(config.model)), to_text(config.precision.dtype).c_str());
  std::printf(
      "batch       %lld sequences x %lld tokens = %lld a rank and micro-batch x %lld micro-batches x %lld data "
      "ranks; schedule %s, recompute %s\n",
      static_cast<long long>(config.train.global_batch_size), static_cast<long long>(config.train.sequence_length),
      static_cast<long long>(config.train.micro_batch_size), static_cast<long long>(micro_batches),
      static_cast<long long>(shape.data), to_text(config.parallel.schedule).c_str(),
      to_text(config.train.recompute).c_str());
  std::string data = facts.data_description;
  for (std::size_t at = 0; (at = data.find('\n', at)) != std::string::npos; at += 13)
    data.replace(at, 1, "\n            ");
  std::printf("data        %s\n", data.c_str());
  std::printf("memory      planned, largest rank: ");
  std::int64_t total = 0;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (planned[i] == 0) continue;
    std::printf("%s %s, ", owner_names[i], bytes_text(planned[i]).c_str());
    total += planned[i];
  }
  std::printf("in all %s\n", bytes_text(total).c_str());
  std::printf("            the loss's logits take %s of the activations on the last stage\n",
              bytes_text(logits_bytes(config, shape)).c_str());
  std::printf("            host memory: %s\n", facts.host_memory.c_str());
  const char* nccl_timeout = std::getenv("NCCL_TIMEOUT");
  const bool is_from_environment = nccl_timeout != nullptr && std::atof(nccl_timeout) == config.comm.timeout_s;
  std::printf("watchdog    ends the run after %g s without progress (%s)%s\n", config.comm.timeout_s,
              is_from_environment ? "NCCL_TIMEOUT of the environment" : "comm.timeout_s",
              config.comm.check ? "; comm.check compares every collective" : "");
  std::fflush(stdout);
}

void print_end_table(const HostGroup& world, const EndFacts& facts) {
  const OwnerBytes planned = largest(world, facts.planned);
  const OwnerBytes peaks = largest(world, facts.peaks);
  if (world.rank() != 0) return;
  std::printf("\nmemory, largest rank     planned       measured peak\n");
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (planned[i] == 0) continue;
    std::printf("  %-14s  %14s  %14s\n", owner_names[i], bytes_text(planned[i]).c_str(), bytes_text(peaks[i]).c_str());
  }
  std::printf("allocations by our code after the first step: %lld (all ranks)\n",
              static_cast<long long>(facts.own_allocations));
  if (facts.data_calls_per_step > 0) {
    std::printf("data axis: %s a step through reduce-scatter and all-gather, %.1f calls (rank 0)\n",
                bytes_text(static_cast<std::int64_t>(facts.data_bytes_per_step)).c_str(), facts.data_calls_per_step);
  }
  std::printf("trained for %.1f s\n", facts.train_s);
  std::fflush(stdout);
}

}  // namespace potato
