#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "potato/config/config.hpp"
#include "potato/core/error.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

const std::string source_dir = POTATO_SOURCE_DIR;

std::string write_file(const std::string& text) {
  std::string path = (std::filesystem::temp_directory_path() / cat("potato_config_", getpid(), ".ini")).string();
  std::ofstream(path) << text;
  return path;
}

// All problems of a text, joined; "" if it loads.
std::string problems_of(const std::string& text, const ConfigOverrides& overrides = {}) {
  const std::string path = write_file(text);
  std::string problems;
  try {
    load_config(path, overrides);
  } catch (const ConfigError& error) {
    problems = error.what();
  }
  std::filesystem::remove(path);
  return problems;
}

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (const auto& problem : problems) text += problem + "\n";
  return text;
}

Config good() {
  Config config = load_config(source_dir + "/inputs/config.ini");
  REQUIRE(check_config(config, 8).empty());
  return config;
}

}  // namespace

TEST_CASE("a file, an override and the defaults", "[config]") {
  const std::string path =
      write_file("# comment\n[model]\nnum_layers = 7  # seven\n[optimizer]\nlearning_rate=2.5e-4\n");
  const Config config = load_config(path, {{"model.hidden_size", "48"}, {"train.sequence_length", "96"}});
  CHECK(config.model.num_layers == 7);
  CHECK(config.optimizer.learning_rate == 2.5e-4);
  CHECK(config.model.hidden_size == 48);
  CHECK(config.model.ffn_hidden_size == 192);
  CHECK(config.model.max_position_embeddings == 96);
  CHECK(config.data.cache_dir == "run/cache");
  std::filesystem::remove(path);
}

TEST_CASE("what to_ini writes is read back to the same values", "[config]") {
  Config config = good();
  config.optimizer.learning_rate = 0.1 + 0.2;
  config.sample.prompt = "  a # b\\n\n\t ";
  config.data.path = "x#y.txt";
  config.parallel.schedule = PipelineSchedule::interleaved;
  config.train.recompute = Recompute::selective;
  config.zero = {.stage = 2, .reduce_bucket_size = 77, .overlap_comm = false, .offload_optimizer = OffloadTarget::cpu};
  config.precision.dtype = Precision::fp16;
  config.precision.min_loss_scale = 0.125;
  config.run.debug_link_gb_per_s = 1.5;
  const std::string path = write_file(to_ini(config));
  const Config again = load_config(path);
  CHECK(to_ini(again) == to_ini(config));
  CHECK(again.zero.stage == 2);
  CHECK(again.zero.offload_optimizer == OffloadTarget::cpu);
  CHECK(again.precision.dtype == Precision::fp16);
  CHECK(again.sample.prompt == config.sample.prompt);
  CHECK(again.optimizer.learning_rate == config.optimizer.learning_rate);
  std::filesystem::remove(path);
}

TEST_CASE("case-17: a misspelt key is refused with its line and the nearest key", "[config]") {
  const std::string problems = problems_of("[optimizer]\nlearning_rate = 1e-3\ngradient_clipp1ng = 1\n");
  CHECK_THAT(problems, ContainsSubstring(".ini:3: unknown key optimizer.gradient_clipp1ng"));
  CHECK_THAT(problems, ContainsSubstring("did you mean optimizer.gradient_clipping?"));
}

TEST_CASE("all mistakes come at once, each with place, value and what is valid", "[config]") {
  const std::string problems =
      problems_of("[train]\nsteps = 12abc\nsteps = 3\n[model]\ndropout = 1\ntie_embeddings = yes\n[nowhere]\nx = 1\n",
                  {{"parallel.tensor", "0"}, {"parallel.schedule", "zigzag"}});
  for (const char* text :
       {".ini:2: train.steps = 12abc", "integer in [1, 1000000000]",
        ".ini:3: train.steps is given twice (first in line 2)", ".ini:5: model.dropout = 1", "[0, 1)",
        ".ini:6: model.tie_embeddings = yes", "true | false", ".ini:8: unknown key nowhere.x",
        "command line: parallel.tensor = 0", "gpipe | 1f1b | interleaved"}) {
    CHECK_THAT(problems, ContainsSubstring(text));
  }
  CHECK_THAT(problems_of("[train\nsteps = 1\n"), ContainsSubstring("[section]"));
  const std::string unreadable = problems_of("[train]\nsteps = x\ngarbage\n[]\n[model]\n= 3\ndropout = 7\n");
  for (const char* text : {".ini:2: train.steps = x", ".ini:3: cannot read \"garbage\"", ".ini:4: cannot read \"[]\"",
                           ".ini:6: cannot read \"= 3\"", ".ini:7: model.dropout = 7"}) {
    CHECK_THAT(unreadable, ContainsSubstring(text));
  }
  CHECK_THAT(problems_of(std::string("[run]\nseed = 1\0\n", 16)), ContainsSubstring("not a text file"));
  CHECK_THAT(problems_of("[train]\nsteps = 9223372036854775807\n"), ContainsSubstring("[1, 1000000000]"));
  CHECK_THROWS_AS(load_config("/no/such/file.ini"), ConfigError);
  CHECK_THROWS_AS(load_config("/tmp"), ConfigError);
}

TEST_CASE("case-18: a batch that does not divide names every factor and the nearest valid values", "[config]") {
  Config config = good();
  config.train.global_batch_size = 50;
  const std::string problems = joined(check_config(config, 8));
  for (const char* text : {"train.global_batch_size = 50", "train.micro_batch_size (12)", "data ranks (2 = ranks 8",
                           "parallel.tensor 2 x parallel.pipeline 2", "48 or 72"}) {
    CHECK_THAT(problems, ContainsSubstring(text));
  }
}

TEST_CASE("what does not fit the grid is refused with what would", "[config]") {
  const auto problem = [](const std::function<void(Config&)>& change, std::int64_t num_ranks = 8) {
    Config config = good();
    change(config);
    return joined(check_config(config, num_ranks));
  };
  CHECK_THAT(problem([](Config& c) { c.parallel.tensor = 3; }), ContainsSubstring("does not divide"));
  CHECK_THAT(problem([](Config&) {}, 6), ContainsSubstring("valid tensor x pipeline for 6: 1x1"));
  CHECK_THAT(problem([](Config& c) { c.model.num_layers = 1; }),
             ContainsSubstring("each stage and chunk needs a layer"));
  CHECK_THAT(problem([](Config& c) { c.model.num_heads = 5; }),
             ContainsSubstring("model.num_heads = 5 does not divide"));
  CHECK_THAT(problem([](Config& c) { c.parallel.virtual_chunks = 2; }), ContainsSubstring("has no effect"));
  CHECK_THAT(problem([](Config& c) { c.train.sequence_length = 4096; }), ContainsSubstring("max_position_embeddings"));
  CHECK_THAT(problem([](Config& c) { c.run.dir = ""; }), ContainsSubstring("run.dir"));
  CHECK_THAT(problem([](Config& c) { c.data.path = ""; }), ContainsSubstring("data.path"));
  CHECK_THAT(problem([](Config& c) {
               c.parallel.schedule = PipelineSchedule::interleaved;
               c.parallel.virtual_chunks = 2;
               c.train.micro_batch_size = 8;
             }),
             ContainsSubstring("interleaved needs micro-batches (3"));
}

TEST_CASE("a key of elsewhere is refused with the key that is here", "[config]") {
  const auto refusal = [](const std::string& section, const std::string& key) {
    return problems_of(cat("[", section, "]\n", key, " = 1\n"));
  };
  CHECK_THAT(refusal("parallel", "bucket_size"),
             ContainsSubstring(".ini:2: unknown key parallel.bucket_size = 1; it is zero.reduce_bucket_size here"));
  CHECK_THAT(refusal("parallel", "overlap_grad_reduce"), ContainsSubstring("zero.overlap_comm"));
  CHECK_THAT(refusal("zero", "contiguous_gradients"), ContainsSubstring("always lie in contiguous buckets"));
  CHECK_THAT(refusal("zero", "round_robin_gradients"), ContainsSubstring("equal parts of each bucket"));
  CHECK_THAT(refusal("zero", "stage3_prefetch_bucket_size"), ContainsSubstring("zero.allgather_bucket_size"));
  CHECK_THAT(refusal("zero", "cpu_offload"), ContainsSubstring("zero.offload_optimizer = cpu"));
  CHECK_THAT(refusal("zero_optimization", "stage"), ContainsSubstring("the section is [zero] here"));
  CHECK_THAT(refusal("fp16", "enabled"), ContainsSubstring("precision.dtype = fp16"));
  CHECK_THAT(refusal("fp16", "loss_scale_window"), ContainsSubstring("loss scaling is in [precision]"));
  CHECK_THAT(refusal("bf16", "enabled"), ContainsSubstring("precision.dtype = bf16"));
  CHECK_THAT(refusal("zero", "offload_optimiser"), ContainsSubstring("did you mean zero.offload_optimizer?"));
  CHECK_THAT(problems_of("", {{"parallel.bucket_size", "5"}}),
             ContainsSubstring("command line: unknown key parallel.bucket_size = 5; it is zero.reduce_bucket_size"));
}

TEST_CASE("values of [zero] and [precision] out of their range are refused", "[config]") {
  for (const char* setting :
       {"zero.stage = 4", "zero.stage = -1", "zero.reduce_bucket_size = 0", "zero.allgather_bucket_size = -1",
        "zero.offload_optimizer = nvme", "zero.offload_param = true", "precision.initial_scale_power = 63",
        "precision.initial_scale_power = -1", "precision.loss_scale = -1", "precision.loss_scale_window = 0",
        "precision.hysteresis = 0", "precision.min_loss_scale = 0", "precision.consecutive_skips_limit = 0",
        "run.host_memory_bytes = -1", "run.debug_link_gb_per_s = -1", "run.debug_overflow_step = -1"}) {
    const std::string text = setting;
    const std::size_t equals = text.find(" = ");
    CHECK_THAT(problems_of("", {{text.substr(0, equals), text.substr(equals + 3)}}),
               ContainsSubstring(text + " is not valid"));
  }
}

TEST_CASE("a key without effect is refused, its default never", "[config]") {
  const auto problem = [](const std::function<void(Config&)>& change) {
    Config config = good();
    change(config);
    return joined(check_config(config, 8));
  };
  const auto no_effect = ContainsSubstring("has no effect");
  for (const std::int64_t stage : {0, 1, 2}) {
    CHECK_THAT(problem([&](Config& c) {
                 c.zero.stage = stage;
                 c.zero.allgather_bucket_size = 1000;
               }),
               ContainsSubstring(cat("zero.allgather_bucket_size = 1000 has no effect with zero.stage = ", stage)));
    CHECK_THAT(problem([&](Config& c) {
                 c.zero.stage = stage;
                 c.zero.offload_param = OffloadTarget::cpu;
               }),
               ContainsSubstring("zero.offload_param = cpu needs zero.stage = 3"));
  }
  CHECK_THAT(problem([](Config& c) {
               c.zero.stage = 3;
               c.zero.reduce_bucket_size = 1000;
             }),
             ContainsSubstring("zero.reduce_bucket_size = 1000 has no effect with zero.stage = 3"));
  CHECK_THAT(problem([](Config& c) { c.zero.pin_memory = true; }), ContainsSubstring("zero.pin_memory = true has no"));

  const std::vector<std::pair<std::function<void(PrecisionConfig&)>, bool>> scaling = {
      // (a change of one key, whether it is of the dynamic scale)
      {[](PrecisionConfig& p) { p.loss_scale = 128; }, false},
      {[](PrecisionConfig& p) { p.consecutive_skips_limit = 3; }, false},
      {[](PrecisionConfig& p) { p.initial_scale_power = 8; }, true},
      {[](PrecisionConfig& p) { p.loss_scale_window = 8; }, true},
      {[](PrecisionConfig& p) { p.hysteresis = 1; }, true},
      {[](PrecisionConfig& p) { p.min_loss_scale = 2; }, true},
  };
  for (const auto& pair : scaling) {
    const std::function<void(PrecisionConfig&)>& change = pair.first;
    const bool is_dynamic = pair.second;
    const auto with = [&](Precision dtype, double loss_scale) {
      return problem([&](Config& c) {
        c.precision.loss_scale = loss_scale;
        c.precision.dtype = dtype;
        change(c.precision);
      });
    };
    CHECK_THAT(with(Precision::bf16, 0), no_effect);
    CHECK(with(Precision::fp16, 0).empty());
    if (is_dynamic) {
      CHECK_THAT(with(Precision::fp16, 64), no_effect);
    } else {
      CHECK(with(Precision::fp16, 64).empty());
    }
  }
  CHECK_THAT(problem([](Config& c) {
               c.precision.dtype = Precision::fp16;
               c.precision.initial_scale_power = 2;
               c.precision.min_loss_scale = 8;
             }),
             ContainsSubstring("precision.min_loss_scale = 8 exceeds the first scale"));
  CHECK(problem([](Config& c) {
          c.zero = {.stage = 3,
                    .allgather_bucket_size = 1000,
                    .offload_optimizer = OffloadTarget::cpu,
                    .offload_param = OffloadTarget::cpu,
                    .pin_memory = true};
        }).empty());
}

TEST_CASE("the command line", "[config]") {
  const char* const words[] = {"potatochat", "a.ini", "--train.steps=3", "--run.dir", "x", "--print-config"};
  const Invocation invocation = parse_command_line(6, words);
  CHECK(invocation.config_path == "a.ini");
  CHECK(invocation.action == Invocation::Action::print_config);
  CHECK(invocation.overrides == ConfigOverrides{{"train.steps", "3"}, {"run.dir", "x"}});
  const char* const nothing[] = {"potatochat"};
  CHECK_THROWS_WITH(parse_command_line(1, nothing), ContainsSubstring("usage"));
  const char* const twice[] = {"potatochat", "a.ini", "b.ini"};
  CHECK_THROWS_AS(parse_command_line(3, twice), ConfigError);
  const char* const valueless[] = {"potatochat", "a.ini", "--train.steps"};
  CHECK_THROWS_AS(parse_command_line(3, valueless), ConfigError);
  const char* const dash[] = {"potatochat", "-x"};
  CHECK_THROWS_WITH(parse_command_line(2, dash), ContainsSubstring("unknown option"));
}

TEST_CASE("every file under inputs loads, and the reference page is the table's", "[config]") {
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir + "/inputs")) {
    if (entry.path().extension() != ".ini") continue;
    ++num_files;
    INFO(entry.path().string());
    CHECK(check_config(load_config(entry.path().string()), 8).empty());
  }
  CHECK(num_files >= 4);
  std::ostringstream page;
  page << std::ifstream(source_dir + "/docs/configuration.md").rdbuf();
  CHECK((page.str() == reference_markdown()));  // else: potatochat --config-reference > docs/configuration.md
}
