// What a run can be told: typed structs for every [section], the INI file and command line that fill them, and the
// checks between keys. Knows nothing of devices or MPI; nothing here is collective.
//
// One table of keys (src/config/keys.cpp) drives parsing, --help, docs/configuration.md and the INI writer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace potato {

enum class DeviceChoice { automatic, cpu, cuda };                 // "auto", "cpu", "cuda"
enum class PipelineSchedule { gpipe, one_f_one_b, interleaved };  // "gpipe", "1f1b", "interleaved"
enum class Recompute { none, selective, full };                   // spelt alike
enum class LearningRateSchedule { constant, linear, cosine };     // spelt alike
enum class Precision { fp32, tf32, bf16, fp16, fp64 };            // spelt alike
enum class AttentionKernel { automatic, own, cudnn };             // "auto", "own", "cudnn"
enum class GradientDType { fp32, bf16, fp16 };                    // spelt alike
enum class OffloadTarget { none, cpu };                           // spelt alike
enum class MpiIo { automatic, ompio, romio321 };                  // "auto", "ompio", "romio321"
enum class OnNonfinite { stop, skip };                            // spelt alike
enum class CheckpointLoad { full, weights };                      // spelt alike

struct RunConfig {
  DeviceChoice device = DeviceChoice::automatic;
  std::int64_t threads = 0;  // CPU threads a rank; 0: cores of the affinity mask / local ranks, at least 1
  std::int64_t seed = 1234;
  std::string dir = "run";
  bool deterministic = true;
  double abort_timeout_s = 30;
  std::int64_t requeue_exit_code = 75;     // of a run that SIGUSR1 stopped; EX_TEMPFAIL of sysexits.h
  std::int64_t host_memory_bytes = 0;      // of this host, for the plan; 0: the cgroup's limit, else all memory
  std::int64_t debug_stream_delay_us = 0;  // tests: each task of a CPU stream waits a random time up to this
  double debug_link_gb_per_s = 0;        // tests, benchmarks: CPU ranks' messages on the data axis take as long; 0: off
  std::int64_t debug_overflow_step = 0;  // tests: the loss gradient of this step is infinite; 0: never
  std::int64_t debug_slow_save_ms = 0;   // tests: a pause between the phases of a save
  std::string debug_fault = "none";      // tests: "RANK:STEP:KIND", see parse_fault()
};

struct ModelConfig {
  std::string family = "gpt2";
  std::int64_t num_layers = 4;
  std::int64_t hidden_size = 256;
  std::int64_t num_heads = 8;
  std::int64_t ffn_hidden_size = 0;          // 0: 4 * hidden_size (resolved by load_config)
  std::int64_t max_position_embeddings = 0;  // 0: train.sequence_length (resolved by load_config)
  std::int64_t vocab_size = 0;               // 0: the tokenizer's (stays 0 here)
  double dropout = 0;
  bool tie_embeddings = true;
};

struct ParallelConfig {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  bool sequence = false;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::int64_t virtual_chunks = 1;
};

// What a data-parallel group splits and where it lies (Rajbhandari et al., arXiv 1910.02054; Ren et al., arXiv
// 2101.06840).
struct ZeroConfig {
  std::int64_t stage = 0;  // split: 0 nothing; 1 master weights and moments; 2 gradients too; 3 parameters too
  std::int64_t reduce_bucket_size = 25'000'000;  // elements of a gradient bucket; stage 3: a layer is a bucket
  std::int64_t allgather_bucket_size = 0;        // stage 3: elements gathered ahead, at least a layer; 0: one layer
  bool overlap_comm = true;                      // reduce and gather beside computation
  OffloadTarget offload_optimizer = OffloadTarget::none;
  OffloadTarget offload_param = OffloadTarget::none;  // stage 3
  bool pin_memory = false;                            // of the offloaded state
};

struct CommConfig {
  double timeout_s = 0;  // without progress of any rank; 0: NCCL_TIMEOUT of the environment, else 600 (resolved)
  bool check = false;    // ranks compare every collective before it runs
};

struct DataConfig {
  std::string path;  // text files (comma separated, globs), or llm.c's or nanoGPT's .bin
  std::string tokenizer = "bytes";
  std::string cache_dir;  // "": run.dir + "/cache" (resolved by load_config)
  double validation_fraction = 0.02;
};

struct TrainConfig {
  std::int64_t steps = 1000;
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  std::int64_t sequence_length = 256;   // tokens
  std::int64_t global_batch_size = 32;  // sequences a step, over all data ranks
  std::int64_t micro_batch_size = 8;    // sequences of one forward pass of one data rank
  Recompute recompute = Recompute::none;
  std::int64_t loss_chunk_tokens = 0;  // 0: the loss takes all rows at once; else chunks of so many tokens
};

struct OptimizerConfig {
  double learning_rate = 1e-3;
  double min_learning_rate = 0;
  std::int64_t warmup_steps = 0;
  LearningRateSchedule schedule = LearningRateSchedule::cosine;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double gradient_clipping = 1.0;  // limit of the global gradient norm; 0: off
};

struct PrecisionConfig {
  Precision dtype = Precision::fp32;
  GradientDType gradient_dtype = GradientDType::fp32;  // of sums over data ranks; fp64 runs keep fp64
  // fp16 only:
  double loss_scale = 0;                      // > 0: fixed; 0: dynamic
  std::int64_t initial_scale_power = 16;      // the dynamic scale starts at 2^this
  std::int64_t loss_scale_window = 1000;      // steps without overflow until it doubles
  std::int64_t hysteresis = 2;                // overflows until it halves
  double min_loss_scale = 1;                  // the dynamic scale is never less
  std::int64_t consecutive_skips_limit = 50;  // so many skipped steps in a row end the run
};

struct KernelsConfig {
  AttentionKernel attention = AttentionKernel::automatic;
};

struct CheckpointConfig {
  std::int64_t every_steps = 0;  // 0: only at the end
  double every_minutes = 0;      // 0: not by time
  bool at_end = true;
  std::string resume = "none";  // "none", "latest" or a path
  CheckpointLoad load = CheckpointLoad::full;
  std::string files = "per_rank";                    // "single", "per_node", "per_rank" or a number of files
  std::string compression = "none";                  // "none" or "deflate(1)" to "deflate(9)"
  std::int64_t chunk_bytes = std::int64_t{1} << 20;  // of compressed datasets
  std::int64_t alignment_bytes = 4096;               // of datasets from 64 KiB on
  MpiIo io = MpiIo::automatic;                       // Open MPI's component for files that several ranks write
  std::string hints;                                 // MPI-IO hints, "name=value; name=value"
  bool async = false;                                // commit in the background, from a snapshot in host memory
  bool verify = false;                               // read back before the commit
  std::int64_t keep_last = 0;                        // so many checkpoints stay; 0: all
  std::int64_t keep_every = 0;                       // beside these, those of steps that are multiples of it; 0: none

  // Whether the run saves at all; then also when it is asked to by a signal or a file.
  bool is_on() const noexcept { return every_steps > 0 || every_minutes > 0 || at_end; }
};

struct LogConfig {
  std::int64_t steps_per_print = 10;
  double straggler_threshold = 1.3;  // times the median of a stage's ranks; 0: off
  std::string metrics;               // "": no metrics file
  bool wall_clock_breakdown = false;
  bool operation_times = false;  // a table of the compute stream's operations at the end
};

struct EvalConfig {
  std::int64_t every_steps = 0;    // 0: only at the end
  std::int64_t batches = 20;       // global batches of a periodic evaluation
  std::int64_t final_batches = 0;  // global batches of the last evaluation; 0: the whole validation split
};

struct SampleConfig {
  std::int64_t tokens = 256;  // 0: no sample at the end
  std::string prompt = "\n";
  double temperature = 0.8;
  std::int64_t top_k = 0;  // 0: all tokens
  std::int64_t seed = 1;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  ParallelConfig parallel;
  ZeroConfig zero;
  CommConfig comm;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  KernelsConfig kernels;
  CheckpointConfig checkpoint;
  LogConfig log;
  EvalConfig eval;
  SampleConfig sample;
};

// ("section.key", value) pairs of the command line, in order; of a key given twice the last one counts.
using ConfigOverrides = std::vector<std::pair<std::string, std::string>>;

struct Invocation {
  enum class Action { run, help, version, print_config, print_reference, verify };
  Action action = Action::run;
  std::string config_path;  // verify: of a checkpoint
  ConfigOverrides overrides;
};

// Reads `potatochat CONFIG.ini [--section.key=value | --section.key value]... [--print-config] [--help] [--version]
// [--config-reference]`. Throws ConfigError with the usage line where the line makes no sense; keys and values are
// looked at by load_config.
Invocation parse_command_line(int argc, const char* const* argv);

// Reads the INI file, then the overrides, then resolves the defaults that depend on other keys. Throws one ConfigError
// that holds every mistake: its file and line (or "command line"), key, value, and what would be valid.
Config load_config(const std::string& path, const ConfigOverrides& overrides = {});

// The text of the INI file, without a byte-order mark. Throws ConfigError.
std::string config_text(const std::string& path);

// The whole configuration as an INI file that load_config reads back to the same values, bit for bit.
std::string to_ini(const Config& config);

// Texts of --help and of docs/configuration.md.
std::string help_text();
std::string reference_markdown();

// Ranks along each axis of the process grid.
struct GridShape {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
};

// Everything about `config` that cannot work on `num_ranks` ranks, one sentence a problem; empty if all is well.
std::vector<std::string> check_config(const Config& config, std::int64_t num_ranks);

// The grid of `num_ranks` ranks: data = num_ranks / (tensor * pipeline). Throws ConfigError with all that check_config
// finds.
GridShape derive_grid(const Config& config, std::int64_t num_ranks);

// Micro-batches of a step on each data rank: global_batch_size / (micro_batch_size * data).
std::int64_t num_micro_batches(const Config& config, const GridShape& grid);

// The text of an enumeration's value, as the INI file spells it.
std::string to_text(DeviceChoice value);
std::string to_text(PipelineSchedule value);
std::string to_text(Recompute value);
std::string to_text(LearningRateSchedule value);
std::string to_text(Precision value);
std::string to_text(AttentionKernel value);
std::string to_text(GradientDType value);
std::string to_text(OffloadTarget value);
std::string to_text(MpiIo value);
std::string to_text(CheckpointLoad value);
std::string to_text(OnNonfinite value);

// What goes wrong in a test: one rank, in one step.
struct Fault {
  enum class Kind { none, skip_collective, data_sleep, stop, slow, nan, kernel_sleep };
  Kind kind = Kind::none;
  std::int64_t rank = -1;
  std::int64_t step = -1;  // slow: from it on
};
// Of run.debug_fault. Throws ConfigError.
Fault parse_fault(const std::string& text);

// The shard file that a rank writes its part of a checkpoint into, of how many (checkpoint.files).
struct CheckpointFile {
  int file = 0;
  int num_files = 1;
};
// `host_of_rank`: a name for each rank of the run. `files` has passed check_config().
CheckpointFile checkpoint_file(const std::string& files, const std::vector<std::string>& host_of_rank, int world_rank);

// 0 for "none"; the level of "deflate(LEVEL)". Throws ConfigError for anything else.
int deflate_level(const std::string& compression);

// The pairs of "name=value; name=value". Throws ConfigError for anything else.
std::vector<std::pair<std::string, std::string>> mpi_io_hints(const std::string& hints);

}  // namespace potato
