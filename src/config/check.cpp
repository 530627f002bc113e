// The checks between keys, and what follows from keys and ranks.
#include <algorithm>
#include <cmath>

#include "potato/config/config.hpp"
#include "potato/core/error.hpp"

namespace potato {

namespace {

std::string divisors(std::int64_t n) {
  std::string text;
  for (std::int64_t d = 1; d <= n && text.size() < 60; ++d) {
    if (n % d == 0) text += cat(text.empty() ? "" : ", ", d);
  }
  return text;
}

void check_divides(const char* whole_name, std::int64_t whole, const char* part_name, std::int64_t part,
                   std::vector<std::string>& problems) {
  if (whole % part == 0) return;
  problems.push_back(cat(part_name, " = ", part, " does not divide ", whole_name, " = ", whole, "; valid for this ",
                         whole_name, ": ", divisors(whole)));
}

void check_model(const Config& config, std::vector<std::string>& problems) {
  const ModelConfig& model = config.model;
  if (model.family != "gpt2") problems.push_back(cat("model.family = ", model.family, " is unknown; valid: gpt2"));
  check_divides("model.hidden_size", model.hidden_size, "model.num_heads", model.num_heads, problems);
  check_divides("model.num_heads", model.num_heads, "parallel.tensor", config.parallel.tensor, problems);
  check_divides("model.ffn_hidden_size", model.ffn_hidden_size, "parallel.tensor", config.parallel.tensor, problems);
  if (model.vocab_size == 1)
    problems.push_back("model.vocab_size = 1: at least 2 tokens are needed (0: the tokenizer's)");
  if (config.train.sequence_length > model.max_position_embeddings) {
    problems.push_back(cat("train.sequence_length = ", config.train.sequence_length,
                           " exceeds model.max_position_embeddings = ", model.max_position_embeddings,
                           "; raise the one or lower the other"));
  }
}

void check_rest(const Config& config, std::vector<std::string>& problems) {
  if (config.run.dir.empty()) problems.push_back("run.dir is empty: name a folder");
  if (config.data.path.empty()) problems.push_back("data.path is empty: name a text file or a token file");
  if (config.data.tokenizer != "bytes") {
    problems.push_back(cat("data.tokenizer = ", config.data.tokenizer, " is unknown; valid: bytes"));
  }
  if (config.checkpoint.resume.empty())
    problems.push_back("checkpoint.resume is empty; valid: none, latest, or a path");
  try {
    parse_fault(config.run.debug_fault);
  } catch (const ConfigError& error) {
    problems.push_back(error.problems().front());
  }
  if (config.optimizer.warmup_steps > config.train.steps) {
    problems.push_back(cat("optimizer.warmup_steps = ", config.optimizer.warmup_steps,
                           " exceeds train.steps = ", config.train.steps, "; lower it"));
  }
  if (config.optimizer.min_learning_rate > config.optimizer.learning_rate) {
    problems.push_back(cat("optimizer.min_learning_rate = ", config.optimizer.min_learning_rate,
                           " exceeds optimizer.learning_rate = ", config.optimizer.learning_rate, "; lower it"));
  }
}

// The batch sizes that are nearest to the given one, below and above, of those that `unit` divides.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below > 0 ? cat(below, " or ", below + unit) : cat(unit);
}

void check_batch(const Config& config, std::int64_t data_ranks, std::vector<std::string>& problems) {
  const std::int64_t global = config.train.global_batch_size;
  const std::int64_t micro = config.train.micro_batch_size;
  if (global % (micro * data_ranks) != 0) {
    problems.push_back(cat(
        "train.global_batch_size = ", global, " must be train.micro_batch_size (", micro, ") x data ranks (",
        data_ranks, " = ranks ", data_ranks * config.parallel.tensor * config.parallel.pipeline, " / (parallel.tensor ",
        config.parallel.tensor, " x parallel.pipeline ", config.parallel.pipeline,
        ")) x micro-batches: nearest valid train.global_batch_size: ", nearest_multiples(global, micro * data_ranks),
        global % data_ranks == 0 ? cat("; or a train.micro_batch_size of ", divisors(global / data_ranks))
                                 : std::string()));
    return;
  }
  const std::int64_t micro_batches = global / (micro * data_ranks);
  if (config.parallel.schedule == PipelineSchedule::interleaved && micro_batches % config.parallel.pipeline != 0) {
    problems.push_back(cat("parallel.schedule = interleaved needs micro-batches (", micro_batches, " = ", global,
                           " / (", micro, " x ", data_ranks, ")) that parallel.pipeline = ", config.parallel.pipeline,
                           " divides; nearest valid train.global_batch_size: ",
                           nearest_multiples(global, micro * data_ranks * config.parallel.pipeline)));
  }
}

void check_pipeline(const Config& config, std::vector<std::string>& problems) {
  const ParallelConfig& parallel = config.parallel;
  const bool is_interleaved = parallel.schedule == PipelineSchedule::interleaved;
  if (parallel.virtual_chunks > 1 && !is_interleaved) {
    problems.push_back(cat("parallel.virtual_chunks = ", parallel.virtual_chunks,
                           " has no effect with parallel.schedule = ", to_text(parallel.schedule),
                           "; use interleaved, or 1 chunk"));
  }
  if (is_interleaved && (parallel.virtual_chunks < 2 || parallel.pipeline < 2)) {
    problems.push_back(cat("parallel.schedule = interleaved needs parallel.pipeline >= 2 (is ", parallel.pipeline,
                           ") and parallel.virtual_chunks >= 2 (is ", parallel.virtual_chunks, ")"));
  }
  if (config.model.num_layers < parallel.pipeline * parallel.virtual_chunks) {
    problems.push_back(cat("model.num_layers = ", config.model.num_layers, " is less than parallel.pipeline (",
                           parallel.pipeline, ") x parallel.virtual_chunks (", parallel.virtual_chunks,
                           "): each stage and chunk needs a layer"));
  }
  const std::int64_t rows = config.train.micro_batch_size * config.train.sequence_length;
  if (parallel.sequence && rows % parallel.tensor != 0) {
    problems.push_back(cat("parallel.sequence = true needs train.micro_batch_size x train.sequence_length (", rows,
                           ") to be a multiple of parallel.tensor = ", parallel.tensor));
  }
}

void check_zero(const ZeroConfig& zero, std::vector<std::string>& problems) {
  const ZeroConfig defaults;
  if (zero.allgather_bucket_size != defaults.allgather_bucket_size && zero.stage < 3) {
    problems.push_back(cat("zero.allgather_bucket_size = ", zero.allgather_bucket_size,
                           " has no effect with zero.stage = ", zero.stage,
                           ", where no parameters are gathered; remove it, or use zero.stage = 3"));
  }
  if (zero.reduce_bucket_size != defaults.reduce_bucket_size && zero.stage == 3) {
    problems.push_back(cat("zero.reduce_bucket_size = ", zero.reduce_bucket_size,
                           " has no effect with zero.stage = 3, where each layer is a bucket; remove it"));
  }
  if (zero.offload_param == OffloadTarget::cpu && zero.stage < 3) {
    problems.push_back(cat("zero.offload_param = cpu needs zero.stage = 3 (is ", zero.stage,
                           "): before it every rank computes with whole parameters; zero.offload_optimizer = cpu works "
                           "with any stage"));
  }
  if (zero.pin_memory && zero.offload_optimizer == OffloadTarget::none && zero.offload_param == OffloadTarget::none) {
    problems.emplace_back(
        "zero.pin_memory = true has no effect where nothing is offloaded; remove it, or use zero.offload_optimizer = "
        "cpu");
  }
}

void check_precision(const PrecisionConfig& precision, OnNonfinite on_nonfinite, std::vector<std::string>& problems) {
  const PrecisionConfig defaults;
  if (precision.dtype == Precision::fp64 && precision.gradient_dtype != defaults.gradient_dtype) {
    problems.push_back(cat("precision.gradient_dtype = ", to_text(precision.gradient_dtype),
                           " has no effect with precision.dtype = fp64, which sums in fp64; remove it"));
  }
  const auto check = [&](const char* name, auto value, auto default_value, bool is_dynamic) {
    if (value == default_value) return;
    if (precision.dtype != Precision::fp16) {
      problems.push_back(cat("precision.", name, " = ", value, " has no effect with precision.dtype = ",
                             to_text(precision.dtype), ": only fp16 scales the loss; remove it"));
    } else if (is_dynamic && precision.loss_scale > 0) {
      problems.push_back(cat("precision.", name, " = ", value, " has no effect with the fixed precision.loss_scale = ",
                             precision.loss_scale, "; remove it, or use precision.loss_scale = 0"));
    }
  };
  check("loss_scale", precision.loss_scale, defaults.loss_scale, false);
  check("initial_scale_power", precision.initial_scale_power, defaults.initial_scale_power, true);
  check("loss_scale_window", precision.loss_scale_window, defaults.loss_scale_window, true);
  check("hysteresis", precision.hysteresis, defaults.hysteresis, true);
  check("min_loss_scale", precision.min_loss_scale, defaults.min_loss_scale, true);
  if (on_nonfinite == OnNonfinite::stop) {
    check("consecutive_skips_limit", precision.consecutive_skips_limit, defaults.consecutive_skips_limit, false);
  }
  const double initial_scale = std::ldexp(1.0, static_cast<int>(precision.initial_scale_power));
  if (precision.dtype == Precision::fp16 && precision.loss_scale == 0 && precision.min_loss_scale > initial_scale) {
    problems.push_back(cat("precision.min_loss_scale = ", precision.min_loss_scale, " exceeds the first scale, 2 to ",
                           "precision.initial_scale_power = ", precision.initial_scale_power, "; lower it"));
  }
}

// checkpoint.files, and what depends on it.
void check_files(const CheckpointConfig& checkpoint, std::int64_t num_ranks, std::vector<std::string>& problems) {
  const std::string& files = checkpoint.files;
  const bool is_number = !files.empty() && files.size() < 8 &&
                         std::all_of(files.begin(), files.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number && files != "single" && files != "per_node" && files != "per_rank") {
    problems.push_back(
        cat("checkpoint.files = ", files, " is not valid: single, per_node, per_rank or a number of files is needed"));
  } else if (is_number && (std::stoll(files) < 1 || std::stoll(files) > num_ranks)) {
    problems.push_back(cat("checkpoint.files = ", files, ": 1 to ", num_ranks, " files for ", num_ranks, " rank(s)"));
  }
  if (checkpoint.async && files != "per_rank") {
    problems.push_back(cat("checkpoint.async = true writes a file for each rank; remove checkpoint.files = ", files));
  }
  if (files == "per_rank" && (checkpoint.io != MpiIo::automatic || !checkpoint.hints.empty())) {
    problems.push_back(cat("checkpoint.io and checkpoint.hints have no effect with checkpoint.files = per_rank, where ",
                           "no file is written by several ranks; remove them, or choose single or per_node"));
  }
}

void check_checkpoint(const CheckpointConfig& checkpoint, std::int64_t num_ranks, std::vector<std::string>& problems) {
  check_files(checkpoint, num_ranks, problems);
  try {
    if (deflate_level(checkpoint.compression) == 0 && checkpoint.chunk_bytes != CheckpointConfig{}.chunk_bytes) {
      problems.push_back(cat("checkpoint.chunk_bytes = ", checkpoint.chunk_bytes,
                             " has no effect with checkpoint.compression = none; remove it"));
    }
  } catch (const ConfigError& error) {
    problems.push_back(error.problems().front());
  }
  try {
    for (const auto& [name, value] : mpi_io_hints(checkpoint.hints)) {
      const bool is_romio = name.starts_with("romio_") || name == "ind_rd_buffer_size" ||
                            name == "ind_wr_buffer_size" || name == "cb_config_list";
      if (!is_romio || checkpoint.io == MpiIo::romio321) continue;
      problems.push_back(cat("checkpoint.hints: ", name, " is a hint of ROMIO, but checkpoint.io = ",
                             to_text(checkpoint.io), " uses OMPIO, which ignores it; choose checkpoint.io = romio321"));
    }
  } catch (const ConfigError& error) {
    problems.push_back(error.problems().front());
  }
  if (checkpoint.keep_every > 0 && checkpoint.keep_last == 0) {
    problems.push_back(cat("checkpoint.keep_every = ", checkpoint.keep_every,
                           " has no effect with checkpoint.keep_last = 0, which keeps all; remove it"));
  }
  if (checkpoint.load == CheckpointLoad::weights && checkpoint.resume == "none") {
    problems.emplace_back("checkpoint.load = weights needs a checkpoint: checkpoint.resume = PATH, or latest");
  }
}

std::string valid_grids(std::int64_t num_ranks) {
  std::string text;
  for (std::int64_t tensor = 1; tensor <= num_ranks; ++tensor) {
    for (std::int64_t pipeline = 1; tensor * pipeline <= num_ranks && text.size() < 200; ++pipeline) {
      if (num_ranks % (tensor * pipeline) == 0) text += cat(text.empty() ? "" : ", ", tensor, "x", pipeline);
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> check_config(const Config& config, std::int64_t num_ranks) {
  std::vector<std::string> problems;
  check_model(config, problems);
  check_rest(config, problems);
  check_pipeline(config, problems);
  check_zero(config.zero, problems);
  check_precision(config.precision, config.train.on_nonfinite, problems);
  check_checkpoint(config.checkpoint, num_ranks, problems);
  const std::int64_t model_ranks = config.parallel.tensor * config.parallel.pipeline;
  if (num_ranks % model_ranks != 0) {
    problems.push_back(cat("parallel.tensor (", config.parallel.tensor, ") x parallel.pipeline (",
                           config.parallel.pipeline, ") = ", model_ranks, " does not divide the ", num_ranks,
                           " rank(s) that were started; valid tensor x pipeline for ", num_ranks, ": ",
                           valid_grids(num_ranks)));
  } else {
    check_batch(config, num_ranks / model_ranks, problems);
  }
  return problems;
}

GridShape derive_grid(const Config& config, std::int64_t num_ranks) {
  const std::vector<std::string> problems = check_config(config, num_ranks);
  if (!problems.empty()) throw ConfigError(problems);
  return {num_ranks / (config.parallel.tensor * config.parallel.pipeline), config.parallel.tensor,
          config.parallel.pipeline};
}

std::int64_t num_micro_batches(const Config& config, const GridShape& grid) {
  return config.train.global_batch_size / (config.train.micro_batch_size * grid.data);
}

}  // namespace potato
