#include "memory_check.hpp"

#include <utility>

#include "bytes_text.hpp"
#include "potato/device/device_memory.hpp"
#include "potato/device/host_memory.hpp"

namespace potato {

namespace {

// The CUDA context's, cuBLASLt's and NCCL's own memory: not in arenas, so it is left free.
constexpr std::int64_t reserve_bytes = std::int64_t{512} << 20;

std::int64_t on_device(const OwnerBytes& bytes) {
  std::int64_t total = reserve_bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!is_on_host(static_cast<Owner>(i))) total += bytes[i];
  }
  return total;
}

// On the CPU all of it is the host's.
std::int64_t on_host(const OwnerBytes& bytes, DeviceKind kind) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (kind != DeviceKind::cuda || is_on_host(static_cast<Owner>(i))) total += bytes[i];
  }
  return total;
}

// Settings with which this rank would need at most `limit_bytes` by `measure`, each with what it then needs.
template <typename Measure>
std::string fitting_settings(const Config& config, const GridShape& shape, int world_rank, DeviceKind kind,
                             std::int64_t limit_bytes, const Measure& measure) {
  std::vector<std::pair<std::string, Config>> candidates;
  const auto add = [&](const std::string& text, auto change) {
    Config changed = config;
    change(changed);
    candidates.emplace_back(text, changed);
  };
  if (config.train.loss_chunk_tokens == 0) {
    add("train.loss_chunk_tokens = 8192", [](Config& c) { c.train.loss_chunk_tokens = 8192; });
  }
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    if (recompute <= config.train.recompute) continue;
    add("train.recompute = " + to_text(recompute), [=](Config& c) { c.train.recompute = recompute; });
  }
  for (std::int64_t part = 2; config.train.micro_batch_size % part == 0; part *= 2) {
    const std::int64_t micro_batch_size = config.train.micro_batch_size / part;
    add(cat("train.micro_batch_size = ", micro_batch_size),
        [=](Config& c) { c.train.micro_batch_size = micro_batch_size; });
    add(cat("train.micro_batch_size = ", micro_batch_size, " with train.recompute = full"), [=](Config& c) {
      c.train.micro_batch_size = micro_batch_size;
      c.train.recompute = Recompute::full;
    });
  }
  const auto offload = [](Config& c) { c.zero.offload_optimizer = OffloadTarget::cpu; };
  for (std::int64_t stage = config.zero.stage + 1; stage <= 3 && shape.data > 1; ++stage) {
    const auto split = [stage](Config& c) {
      c.zero.stage = stage;
      if (stage == 3) c.zero.reduce_bucket_size = ZeroConfig{}.reduce_bucket_size;
    };
    add(cat("zero.stage = ", stage), split);
  }
  if (kind == DeviceKind::cuda && config.zero.offload_optimizer == OffloadTarget::none) {
    add("zero.offload_optimizer = cpu", offload);
    add("zero.offload_optimizer = cpu with train.recompute = full", [&](Config& c) {
      offload(c);
      c.train.recompute = Recompute::full;
    });
  }
  std::string text;
  for (const auto& [name, changed] : candidates) {
    if (!check_config(changed, shape.data * shape.tensor * shape.pipeline).empty()) continue;
    const std::int64_t needed = measure(planned_bytes(changed, shape, world_rank, kind));
    if (needed <= limit_bytes) text += cat(text.empty() ? "" : "; ", name, " (", bytes_text(needed), ")");
  }
  return text.empty()
             ? "none of train.loss_chunk_tokens, train.recompute, train.micro_batch_size, zero.* alone; use more ranks "
               "(parallel.tensor, parallel.pipeline) or a smaller model"
             : text;
}

}  // namespace

void check_gpu_memory(const HostGroup& world, const Topology& topology, const GpuTopology& gpus, const Config& config,
                      const GridShape& shape, const OwnerBytes& planned) {
  const auto self = static_cast<std::size_t>(world.rank());
  const std::vector<std::string> needs = world.all_gather(std::to_string(on_device(planned)));
  std::int64_t needed = 0;
  std::int64_t num_sharing = 0;
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    if (topology.host_of_rank[rank] != topology.host_of_rank[self] ||
        gpus.bus_of_rank[rank] != gpus.bus_of_rank[self]) {
      continue;
    }
    needed += std::stoll(needs[rank]);
    ++num_sharing;
  }
  world.run_agreed([&] {
    const std::int64_t available = free_device_memory(Device{DeviceKind::cuda, gpus.place.ordinal});
    if (needed <= available) return;
    throw ConfigError(
        cat("GPU ", gpus.place.bus_id, " of ", topology.host_of_rank[self], " (", gpus.place.name, "): ", num_sharing,
            " rank(s) need ", bytes_text(needed), ", ", bytes_text(available),
            " are available; settings with which rank ", world.rank(), " would fit: ",
            fitting_settings(config, shape, world.rank(), DeviceKind::cuda, available / num_sharing, on_device)));
  });
}

std::string check_host_memory(const HostGroup& world, const Topology& topology, const Config& config,
                              const GridShape& shape, DeviceKind kind, const OwnerBytes& planned) {
  const std::string& host = topology.host_of_rank[static_cast<std::size_t>(world.rank())];
  const auto measure = [kind](const OwnerBytes& bytes) { return on_host(bytes, kind); };
  const std::vector<std::string> needs = world.all_gather(std::to_string(measure(planned)));
  std::int64_t needed = 0;
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    if (topology.host_of_rank[rank] == host) needed += std::stoll(needs[rank]);
  }
  const HostMemoryLimit limit = host_memory_limit();
  const std::int64_t available = config.run.host_memory_bytes > 0 ? config.run.host_memory_bytes : limit.bytes();
  const std::string facts =
      cat("cgroup limit ", limit.cgroup_bytes > 0 ? bytes_text(limit.cgroup_bytes) : "none", ", MemTotal ",
          limit.mem_total_bytes > 0 ? bytes_text(limit.mem_total_bytes) : "unknown",
          config.run.host_memory_bytes > 0
              ? cat(", run.host_memory_bytes ", bytes_text(config.run.host_memory_bytes), " counts")
              : std::string());
  world.run_agreed([&] {
    if (topology.local_rank != 0 || available == 0 || needed <= available) return;
    throw ConfigError(cat(
        "host ", host, ": ", topology.num_local_ranks, " rank(s) need ", bytes_text(needed), " of its memory, ",
        bytes_text(available), " are available (", facts, "); settings with which rank ", world.rank(), " would fit: ",
        fitting_settings(config, shape, world.rank(), kind, available / topology.num_local_ranks, measure),
        "; or set run.host_memory_bytes where the limit is wrong"));
  });
  return cat(bytes_text(needed), " on ", host, " of ", bytes_text(available), " (", facts, ")");
}

}  // namespace potato
