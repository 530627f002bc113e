#include "keys.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "potato/core/error.hpp"

namespace potato {

namespace {

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

template <typename Enum>
using Names = std::vector<std::pair<Enum, std::string>>;

const Names<DeviceChoice> device_names = {
    {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};
const Names<PipelineSchedule> schedule_names = {{PipelineSchedule::gpipe, "gpipe"},
                                                {PipelineSchedule::one_f_one_b, "1f1b"},
                                                {PipelineSchedule::interleaved, "interleaved"}};
const Names<Recompute> recompute_names = {
    {Recompute::none, "none"}, {Recompute::selective, "selective"}, {Recompute::full, "full"}};
const Names<LearningRateSchedule> rate_names = {{LearningRateSchedule::constant, "constant"},
                                                {LearningRateSchedule::linear, "linear"},
                                                {LearningRateSchedule::cosine, "cosine"}};
const Names<Precision> precision_names = {{Precision::fp32, "fp32"},
                                          {Precision::tf32, "tf32"},
                                          {Precision::bf16, "bf16"},
                                          {Precision::fp16, "fp16"},
                                          {Precision::fp64, "fp64"}};
const Names<AttentionKernel> attention_names = {
    {AttentionKernel::automatic, "auto"}, {AttentionKernel::own, "own"}, {AttentionKernel::cudnn, "cudnn"}};
const Names<GradientDType> gradient_names = {
    {GradientDType::fp32, "fp32"}, {GradientDType::bf16, "bf16"}, {GradientDType::fp16, "fp16"}};
const Names<MpiIo> io_names = {{MpiIo::automatic, "auto"}, {MpiIo::ompio, "ompio"}, {MpiIo::romio321, "romio321"}};
const Names<OnNonfinite> nonfinite_names = {{OnNonfinite::stop, "stop"}, {OnNonfinite::skip, "skip"}};
const Names<CheckpointLoad> load_names = {{CheckpointLoad::full, "full"}, {CheckpointLoad::weights, "weights"}};
const Names<OffloadTarget> offload_names = {{OffloadTarget::none, "none"}, {OffloadTarget::cpu, "cpu"}};

template <typename Enum>
std::string name_of(const Names<Enum>& names, Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  throw Error("a value without a name");
}

// A number that is the whole text.
template <typename Number>
bool parse(const std::string& text, Number& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

std::string shortest(double value) {
  std::array<char, 40> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

// A one-line value that the INI parser gives back unchanged: line breaks, tabs, '#' and blanks at the ends are escaped.
std::string escaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool at_end = i == 0 || i + 1 == text.size();
    switch (text[i]) {
      case '\n':
        result += "\\n";
        break;
      case '\t':
        result += "\\t";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '#':
        result += "\\h";
        break;
      case ' ':
        result += at_end ? "\\s" : " ";
        break;
      default:
        result += text[i];
    }
  }
  return result;
}

std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      result += text[i];
      continue;
    }
    const char code = text[++i];
    result += code == 'n' ? '\n' : code == 't' ? '\t' : code == 'h' ? '#' : code == 's' ? ' ' : code;
  }
  return result;
}

template <typename Field>
ConfigKey integer(const char* section, const char* name, Field field, std::int64_t least, const char* unit,
                  const char* meaning, std::int64_t most) {
  return {section,
          name,
          unit,
          most == no_limit ? cat("integer >= ", least) : cat("integer in [", least, ", ", most, "]"),
          meaning,
          [field](const Config& c) { return std::to_string(field(const_cast<Config&>(c))); },
          [field, least, most](Config& c, const std::string& text) {
            std::int64_t value = 0;
            if (!parse(text, value) || value < least || value > most) return false;
            field(c) = value;
            return true;
          }};
}

// Limits: `open_below` and `open_above` say whether the limit itself is excluded.
template <typename Field>
ConfigKey real(const char* section, const char* name, Field field, double least, bool open_below, double most,
               bool open_above, const char* unit, const char* meaning) {
  const bool bounded = std::isfinite(most);
  const std::string valid = bounded
                                ? cat("number in ", open_below ? "(" : "[", least, ", ", most, open_above ? ")" : "]")
                                : cat("number ", open_below ? "> " : ">= ", least);
  return {section,
          name,
          unit,
          valid,
          meaning,
          [field](const Config& c) { return shortest(field(const_cast<Config&>(c))); },
          [=](Config& c, const std::string& text) {
            double value = 0;
            if (!parse(text, value) || !std::isfinite(value)) return false;
            if (value < least || (open_below && value == least)) return false;
            if (value > most || (open_above && value == most)) return false;
            field(c) = value;
            return true;
          }};
}

template <typename Field>
ConfigKey boolean(const char* section, const char* name, Field field, const char* meaning) {
  return {section,
          name,
          "",
          "true | false",
          meaning,
          [field](const Config& c) { return std::string(field(const_cast<Config&>(c)) ? "true" : "false"); },
          [field](Config& c, const std::string& text) {
            if (text != "true" && text != "false") return false;
            field(c) = text == "true";
            return true;
          }};
}

template <typename Field>
ConfigKey text(const char* section, const char* name, Field field, const char* valid, const char* meaning) {
  return {section,
          name,
          "",
          valid,
          meaning,
          [field](const Config& c) { return escaped(field(const_cast<Config&>(c))); },
          [field](Config& c, const std::string& value) {
            field(c) = unescaped(value);
            return true;
          }};
}

template <typename Enum, typename Field>
ConfigKey choice(const char* section, const char* name, Field field, const Names<Enum>& names, const char* meaning) {
  std::string valid;
  for (const auto& entry : names) valid += (valid.empty() ? "" : " | ") + entry.second;
  return {section,
          name,
          "",
          valid,
          meaning,
          [field, &names](const Config& c) { return name_of(names, field(const_cast<Config&>(c))); },
          [field, &names](Config& c, const std::string& value) {
            for (const auto& [known, spelling] : names) {
              if (spelling != value) continue;
              field(c) = known;
              return true;
            }
            return false;
          }};
}

#define PC_FIELD(section, key) \
  [](Config & c) -> auto& { return c.section.key; }
#define PC_INTEGER(section, key, least, unit, meaning) \
  integer(#section, #key, PC_FIELD(section, key), least, unit, meaning, no_limit)
#define PC_BOUNDED(section, key, least, most, unit, meaning) \
  integer(#section, #key, PC_FIELD(section, key), least, unit, meaning, most)
#define PC_POSITIVE(section, key, unit, meaning) \
  real(#section, #key, PC_FIELD(section, key), 0, true, std::numeric_limits<double>::infinity(), false, unit, meaning)
#define PC_NOT_NEGATIVE(section, key, unit, meaning) \
  real(#section, #key, PC_FIELD(section, key), 0, false, std::numeric_limits<double>::infinity(), false, unit, meaning)
#define PC_FRACTION(section, key, meaning) real(#section, #key, PC_FIELD(section, key), 0, false, 1, true, "", meaning)
#define PC_BOOLEAN(section, key, meaning) boolean(#section, #key, PC_FIELD(section, key), meaning)
#define PC_TEXT(section, key, valid, meaning) text(#section, #key, PC_FIELD(section, key), valid, meaning)
#define PC_CHOICE(section, key, names, meaning) choice(#section, #key, PC_FIELD(section, key), names, meaning)

std::vector<ConfigKey> make_keys() {
  return {
      PC_CHOICE(run, device, device_names, "What computes. auto: a GPU where the build and the machine have one."),
      PC_BOUNDED(run, threads, 0, 1'024, "threads",
                 "CPU threads of a rank. 0: the cores that the rank may use, shared between the ranks of the host."),
      PC_INTEGER(run, seed, 0, "", "Seed of everything random: initial weights, dropout, data order."),
      PC_TEXT(run, dir, "path", "Folder of the run: checkpoints, cache and samples."),
      PC_BOOLEAN(run, deterministic, "Repeat a step bitwise on the same grid and machine. CPU runs always do."),
      PC_POSITIVE(run, abort_timeout_s, "s", "A job with a failed rank has ended after this time."),
      PC_BOUNDED(run, requeue_exit_code, 1, 125, "",
                 "Exit code of a run that SIGUSR1 stopped, after its checkpoint was committed: for job scripts that "
                 "requeue."),
      PC_INTEGER(
          run, host_memory_bytes, 0, "bytes",
          "Memory of the host that its ranks may use together. 0: the limit of the cgroup (container, Slurm job), "
          "else all of the host's memory."),
      PC_INTEGER(run, debug_stream_delay_us, 0, "us",
                 "For tests: tasks of CPU streams start after a random delay of up to this."),
      PC_NOT_NEGATIVE(
          run, debug_link_gb_per_s, "GB/s",
          "For tests and benchmarks: messages of CPU ranks on the data axis take at least as long as on such "
          "a link. 0: off."),
      PC_INTEGER(run, debug_overflow_step, 0, "step",
                 "For tests: the loss gradient of this step is infinite. 0: never."),
      PC_INTEGER(run, debug_slow_save_ms, 0, "ms", "For tests: a pause between the phases of a save."),
      PC_TEXT(run, debug_fault, "none | RANK:STEP:KIND",
              "For tests: one rank skips a collective (skip_collective), sleeps in its data loading (data_sleep) or in "
              "a kernel "
              "(kernel_sleep), stops itself (stop), gets infinite gradients (nan) in a step, or is slow from it on "
              "(slow)."),

      PC_TEXT(model, family, "gpt2", "Architecture."),
      PC_BOUNDED(model, num_layers, 1, 100'000, "layers", "Transformer layers."),
      PC_BOUNDED(model, hidden_size, 1, 1'000'000, "channels", "Width of the residual stream."),
      PC_BOUNDED(model, num_heads, 1, 100'000, "heads", "Attention heads; they divide hidden_size."),
      PC_BOUNDED(model, ffn_hidden_size, 0, 10'000'000, "channels",
                 "Width of the feed-forward layer. 0: 4 x hidden_size."),
      PC_BOUNDED(model, max_position_embeddings, 0, 10'000'000, "tokens",
                 "Longest sequence that positions exist for. 0: train.sequence_length."),
      PC_BOUNDED(model, vocab_size, 0, 100'000'000, "tokens",
                 "Vocabulary. 0: the tokenizer's; must be given for token files, which do not say it."),
      PC_FRACTION(model, dropout, "Dropout of embeddings, attention probabilities and both residual branches."),
      PC_BOOLEAN(model, tie_embeddings, "The head shares the token embedding's weight."),

      PC_BOUNDED(parallel, tensor, 1, 100'000, "ranks",
                 "Tensor-parallel ranks T: heads and feed-forward width are split."),
      PC_BOUNDED(parallel, pipeline, 1, 100'000, "ranks", "Pipeline stages P. The data axis has ranks / (T x P)."),
      PC_BOOLEAN(parallel, sequence, "Sequence parallelism: norms and dropout work on token shards."),
      PC_CHOICE(parallel, schedule, schedule_names, "Pipeline schedule."),
      PC_BOUNDED(parallel, virtual_chunks, 1, 1'000, "chunks",
                 "Layer chunks of a stage; more than 1 with interleaved only."),

      PC_BOUNDED(zero, stage, 0, 3, "",
                 "What the data ranks split between them. 0: nothing, every rank holds all; 1: master weights and "
                 "moments; 2: gradients too; 3: parameters too, which are gathered layer by layer."),
      PC_INTEGER(
          zero, reduce_bucket_size, 1, "elements",
          "Gradients are reduced over the data axis in buckets of this size; at stage 2 whole layers up to about "
          "that many. No effect at stage 3, where each layer is a bucket."),
      PC_INTEGER(zero, allgather_bucket_size, 0, "elements",
                 "Stage 3: parameters that are gathered ahead of their use, at least one layer. 0: one layer."),
      PC_BOOLEAN(zero, overlap_comm, "Reduce and gather beside computation."),
      PC_CHOICE(zero, offload_optimizer, offload_names,
                "cpu: master weights and moments lie in host memory and are updated there, at any stage."),
      PC_CHOICE(zero, offload_param, offload_names, "cpu: at stage 3 the parameters' shards lie in host memory."),
      PC_BOOLEAN(zero, pin_memory,
                 "Host memory of the offloaded state is pinned (page-locked), so that copies run at full speed."),

      PC_NOT_NEGATIVE(comm, timeout_s, "s",
                      "When no rank has made progress for so long, the run ends with a report of who holds it up. 0: "
                      "NCCL_TIMEOUT of the environment, else 600."),
      PC_BOOLEAN(comm, check,
                 "Before each collective its ranks compare operation, size, dtype and step, and name the first "
                 "difference. Slow; to find mismatched collectives."),

      PC_TEXT(data, path, "files, globs",
              "Text files, or token files (.bin of llm.c or nanoGPT); several separated by commas."),
      PC_TEXT(data, tokenizer, "bytes", "Of text files: 256 bytes and an end-of-text token."),
      PC_TEXT(data, cache_dir, "path", "Where the tokens of text files are cached. Empty: run.dir/cache."),
      real("data", "validation_fraction", PC_FIELD(data, validation_fraction), 0, false, 0.5, false, "",
           "Part of the data held out: every (1 / fraction)-th block of 65,536 tokens. 0: none."),

      PC_BOUNDED(train, steps, 1, 1'000'000'000, "steps", "Optimizer steps, counted from the run's very first."),
      PC_CHOICE(
          train, on_nonfinite, nonfinite_names,
          "When loss or gradient norm is not finite. stop: the run ends and names the first tensor; skip: the step "
          "changes nothing and the run goes on, up to precision.consecutive_skips_limit in a row."),
      PC_BOUNDED(train, sequence_length, 1, 10'000'000, "tokens", "Tokens of a sample."),
      PC_BOUNDED(train, global_batch_size, 1, 10'000'000, "sequences",
                 "Samples of a step, over all data ranks and micro-batches."),
      PC_BOUNDED(train, micro_batch_size, 1, 1'000'000, "sequences", "Samples of one pass of one data rank."),
      PC_CHOICE(
          train, recompute, recompute_names,
          "Activations computed again in backward. selective: norms and activation functions; full: whole layers."),
      PC_INTEGER(train, loss_chunk_tokens, 0, "tokens",
                 "The loss is computed in chunks of so many tokens, so that logits need less memory. 0: all at once."),

      PC_POSITIVE(optimizer, learning_rate, "", "Peak learning rate of AdamW."),
      PC_NOT_NEGATIVE(optimizer, min_learning_rate, "", "Where linear and cosine schedules end."),
      PC_INTEGER(optimizer, warmup_steps, 0, "steps", "Linear warm-up."),
      PC_CHOICE(optimizer, schedule, rate_names, "Learning rate after the warm-up."),
      PC_NOT_NEGATIVE(optimizer, weight_decay, "", "Decoupled decay; not of norms and biases."),
      PC_FRACTION(optimizer, beta1, "AdamW's beta1."),
      PC_FRACTION(optimizer, beta2, "AdamW's beta2."),
      PC_POSITIVE(optimizer, eps, "", "AdamW's epsilon."),
      PC_NOT_NEGATIVE(optimizer, gradient_clipping, "", "Largest global gradient norm. 0: no clipping."),

      PC_CHOICE(
          precision, dtype, precision_names,
          "Of weights and activations. bf16, fp16: beside fp32 master weights, gradients and moments; on the CPU "
          "16-bit "
          "values are stored as such and computed in fp32. fp16: with loss scaling. tf32: fp32 whose matrix products "
          "round their inputs (GPU only). fp64: CPU only."),
      PC_CHOICE(precision, gradient_dtype, gradient_names,
                "In which gradients are summed over data ranks: 16 bits halve that traffic and round each partial sum. "
                "On a rank they are accumulated in fp32 always."),
      PC_NOT_NEGATIVE(precision, loss_scale, "",
                      "fp16: factor of the loss, so that small gradients do not vanish. 0: dynamic; the keys below."),
      PC_BOUNDED(precision, initial_scale_power, 0, 62, "", "fp16: the dynamic scale starts at 2 to this power."),
      PC_INTEGER(precision, loss_scale_window, 1, "steps",
                 "fp16: after so many steps without overflow the dynamic scale doubles."),
      PC_INTEGER(precision, hysteresis, 1, "steps",
                 "fp16: so many overflows halve the dynamic scale; it is full again when the scale doubles."),
      PC_POSITIVE(precision, min_loss_scale, "", "fp16: the dynamic scale is never less."),
      PC_INTEGER(precision, consecutive_skips_limit, 1, "steps",
                 "The run ends after so many steps in a row that were skipped (fp16, and train.on_nonfinite = skip)."),

      PC_CHOICE(kernels, attention, attention_names,
                "What computes attention on a GPU. own: our kernels; cudnn: cuDNN's (16-bit, no dropout); auto: by a "
                "static table of dtype and shape, so that runs repeat."),

      PC_INTEGER(checkpoint, every_steps, 0, "steps", "Save every so many steps. 0: only at the end."),
      PC_NOT_NEGATIVE(checkpoint, every_minutes, "min",
                      "Save when so much time has passed since the last save. 0: never."),
      PC_BOOLEAN(checkpoint, at_end, "Save after the last step."),
      PC_TEXT(checkpoint, resume, "none | latest | PATH",
              "Go on from a checkpoint, made on any grid. latest: the newest good one of run.dir."),
      PC_CHOICE(checkpoint, load, load_names,
                "full: go on where the checkpoint stopped; weights: start a new run from its weights."),
      PC_TEXT(checkpoint, files, "single | per_node | per_rank | NUMBER",
              "Shard files of a checkpoint. Several ranks write one file through parallel HDF5."),
      PC_TEXT(checkpoint, compression, "none | deflate(1) to deflate(9)", "Of the tensors in the shard files."),
      PC_BOUNDED(checkpoint, chunk_bytes, 1'024, std::int64_t{1} << 30, "bytes", "Chunks of compressed tensors."),
      PC_BOUNDED(checkpoint, alignment_bytes, 1, std::int64_t{1} << 30, "bytes",
                 "Tensors from 64 KiB on begin at multiples of this in their file."),
      PC_CHOICE(checkpoint, io, io_names,
                "Open MPI's component for files that several ranks write. auto: Open MPI's own choice, OMPIO."),
      PC_TEXT(checkpoint, hints, "name=value; ...",
              "MPI-IO hints for files that several ranks write. Those of ROMIO need io = romio321."),
      PC_BOOLEAN(checkpoint, async,
                 "Copy the state into host memory beside the next step, and write it in the background while training "
                 "goes on. With files = per_rank."),
      PC_BOOLEAN(checkpoint, verify, "Read a checkpoint back and compare its hashes before it is committed."),
      PC_INTEGER(checkpoint, keep_last, 0, "checkpoints",
                 "After a commit, older checkpoints are removed but for so many of the newest. 0: all stay."),
      PC_INTEGER(checkpoint, keep_every, 0, "steps",
                 "Checkpoints of steps that are multiples of this stay beside keep_last. 0: none."),

      PC_INTEGER(log, steps_per_print, 1, "steps", "Steps between progress lines."),
      real("log", "straggler_threshold", PC_FIELD(log, straggler_threshold), 0, false, 1000, false, "",
           "A rank whose computation takes so many times the median of its stage's ranks is named. 0: off."),
      PC_TEXT(log, metrics, "path", "File that gets one JSON object a step. Empty: none."),
      PC_BOOLEAN(log, wall_clock_breakdown, "Also print where a step's time goes."),
      PC_BOOLEAN(log, operation_times,
                 "Print at the end where the compute stream of rank 0 spent its time: each operation's ms a step, "
                 "TFLOP/s and GB/s. The last step's; timing costs a few microseconds an operation."),

      PC_INTEGER(eval, every_steps, 0, "steps", "Evaluate every so many steps. 0: only at the end."),
      PC_INTEGER(eval, batches, 1, "global batches", "Length of an evaluation on the way."),
      PC_INTEGER(eval, final_batches, 0, "global batches", "Length of the last evaluation. 0: the whole split."),

      PC_BOUNDED(sample, tokens, 0, 10'000'000, "tokens", "Length of the text generated at the end. 0: none."),
      PC_TEXT(sample, prompt, "text",
              "What the generated text goes on from; \\n is a line break, \\h a #, \\s a blank."),
      PC_NOT_NEGATIVE(sample, temperature, "", "Of the drawn samples; 0: greedy."),
      PC_BOUNDED(sample, top_k, 0, 100'000'000, "tokens", "Draw from the k likeliest tokens. 0: from all."),
      PC_INTEGER(sample, seed, 0, "", "Seed of the drawn samples."),
  };
}

// Levenshtein distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

// The key with the smallest edit distance.
const ConfigKey& nearest_key(std::string_view full_name) {
  return *std::min_element(config_keys().begin(), config_keys().end(), [&](const ConfigKey& a, const ConfigKey& b) {
    return edit_distance(full_name, a.full_name()) < edit_distance(full_name, b.full_name());
  });
}

// Keys of other programs, and of our own past, with what is there instead. A name that ends in '.' is a section.
const std::vector<std::pair<std::string, std::string>> keys_elsewhere = {
    {"parallel.bucket_size", "it is zero.reduce_bucket_size here"},
    {"parallel.overlap_grad_reduce", "it is zero.overlap_comm here"},
    {"zero.contiguous_gradients", "gradients always lie in contiguous buckets here; remove it"},
    {"zero.round_robin_gradients",
     "shards are equal parts of each bucket, so no gradients need dealing out; remove it"},
    {"zero.stage3_prefetch_bucket_size", "it is zero.allgather_bucket_size here"},
    {"zero.cpu_offload", "it is zero.offload_optimizer = cpu here"},
    {"zero_optimization.", "the section is [zero] here"},
    {"fp16.enabled", "it is precision.dtype = fp16 here"},
    {"fp16.", "loss scaling is in [precision] here, with precision.dtype = fp16"},
    {"bf16.", "it is precision.dtype = bf16 here"},
};

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

const ConfigKey* find_key(std::string_view full_name) {
  for (const ConfigKey& key : config_keys()) {
    if (key.full_name() == full_name) return &key;
  }
  return nullptr;
}

std::string advice_for_unknown(std::string_view full_name) {
  for (const auto& [name, advice] : keys_elsewhere) {
    if (name.back() == '.' ? full_name.substr(0, name.size()) == name : full_name == name) return advice;
  }
  return cat("did you mean ", nearest_key(full_name).full_name(), "?");
}

std::string to_text(DeviceChoice value) { return name_of(device_names, value); }
std::string to_text(PipelineSchedule value) { return name_of(schedule_names, value); }
std::string to_text(Recompute value) { return name_of(recompute_names, value); }
std::string to_text(LearningRateSchedule value) { return name_of(rate_names, value); }
std::string to_text(Precision value) { return name_of(precision_names, value); }
std::string to_text(AttentionKernel value) { return name_of(attention_names, value); }
std::string to_text(GradientDType value) { return name_of(gradient_names, value); }
std::string to_text(OffloadTarget value) { return name_of(offload_names, value); }
std::string to_text(MpiIo value) { return name_of(io_names, value); }
std::string to_text(OnNonfinite value) { return name_of(nonfinite_names, value); }
std::string to_text(CheckpointLoad value) { return name_of(load_names, value); }

}  // namespace potato
