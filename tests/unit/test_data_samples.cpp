// Splits, windows, samples and the whole data set.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <tuple>

#include "potato/data/dataset.hpp"
#include "potato/data/token_cache.hpp"
#include "potato/data/tokenizer.hpp"
#include "support/catch.hpp"
#include "test_data_support.hpp"

using namespace potato;
using namespace potato::test;

namespace {

struct Sample {
  std::vector<std::int32_t> tokens, targets;

  friend bool operator==(const Sample&, const Sample&) = default;
  friend bool operator<(const Sample& a, const Sample& b) {
    return std::tie(a.tokens, a.targets) < std::tie(b.tokens, b.targets);
  }
};

Sample sample_of(const SampleSource& source, std::int64_t number) {
  const auto length = static_cast<std::size_t>(source.sequence_length());
  Sample sample{std::vector<std::int32_t>(length, -7), std::vector<std::int32_t>(length, -7)};
  source.fill(number, sample.tokens.data(), sample.targets.data());
  return sample;
}

std::int64_t num_counted(const Sample& sample) {
  return std::count_if(sample.targets.begin(), sample.targets.end(), [](std::int32_t target) { return target != -1; });
}

// Which split each target of the stream belongs to, by walking block by block: 0 train, 1 validation, -1 none (the
// first token of a segment).
std::vector<int> naive_targets(std::int64_t num_tokens, std::int64_t block_tokens, std::int64_t every_blocks) {
  std::vector<int> owner;
  int previous = -1;
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    const std::int64_t block = i / block_tokens;
    const int split = every_blocks > 0 && (block + 1) % every_blocks == 0 ? 1 : 0;
    owner.push_back(split == previous ? split : -1);
    previous = split;
  }
  return owner;
}

DatasetOptions options_of(const TemporaryFolder& folder, const std::string& path, std::int64_t sequence_length) {
  return {.path = path,
          .cache_dir = folder.path("cache"),
          .validation_fraction = 0.02,
          .sequence_length = sequence_length,
          .seed = 11};
}

Dataset prepared(const DatasetOptions& options) {
  Dataset::prepare(options);
  return Dataset::open(options);
}

}  // namespace

TEST_CASE("case-13: windows hold every target of a split exactly once, over many sizes", "[data]") {
  for (const std::int64_t num_tokens : {33, 34, 100, 127, 128, 129, 1000, 4097, 70001, 131073, 300007}) {
    for (const std::int64_t sequence_length : {1, 7, 15, 16}) {
      for (const double fraction : {0.0, 0.5, 0.3, 0.02}) {
        const std::int64_t k = fraction == 0.0 ? 1 : std::llround(1 / fraction);
        if (num_tokens < k * (sequence_length + 1)) continue;
        const StreamSplit split = make_split(num_tokens, fraction, sequence_length);
        REQUIRE(split.validation.has_value() == (fraction > 0));
        std::vector<int> owner(static_cast<std::size_t>(num_tokens), -1);
        bool all_valid = true, once = true;
        const auto visit = [&](const SegmentedSplit& part, int id) {
          REQUIRE(part.num_windows() > 0);
          std::int64_t num_targets = 0;
          for (std::int64_t w = 0; w < part.num_windows(); ++w) {
            const TokenWindow window = part.window(w);
            all_valid = all_valid && window.num_valid >= 1 && window.num_valid <= sequence_length;
            for (std::int64_t t = 1; t <= window.num_valid; ++t) {
              int& target = owner[static_cast<std::size_t>(window.begin + t)];
              once = once && target == -1;
              target = id;
            }
            num_targets += window.num_valid;
          }
          CHECK(num_targets == part.num_targets());
          CHECK_THROWS_AS(part.window(part.num_windows()), Error);
          CHECK_THROWS_AS(part.window(-1), Error);
        };
        visit(split.train, 0);
        if (split.validation) visit(*split.validation, 1);
        INFO("tokens " << num_tokens << ", T " << sequence_length << ", fraction " << fraction);
        CHECK(all_valid);
        CHECK(once);
        CHECK(owner == naive_targets(num_tokens, split.block_tokens, split.validation_every_blocks));
      }
    }
  }
}

TEST_CASE("blocks have 65,536 tokens where the stream is long enough", "[data]") {
  const StreamSplit split = make_split(40'000'000, 0.02, 64);
  CHECK(split.block_tokens == 65536);
  CHECK(split.validation_every_blocks == 50);
  REQUIRE(split.validation);
  CHECK(split.validation->num_segments() == 12);
  CHECK(split.validation->segment_begin(1) == 99 * 65536);
  CHECK(split.validation->segment_length_tokens(1) == 65536);
  CHECK(split.train.num_segments() == 13);
  CHECK(make_split(65536 * 99, 0.02, 64).block_tokens == 32768);
  CHECK(make_split(65 * 50, 0.02, 64).block_tokens == 65);
  CHECK(make_split(1'000'000, 0.02, 100'000 / 50 - 1).block_tokens >= 2000);
  CHECK(make_split(300'000, 0.5, 100'000).block_tokens == 100'001);  // a sequence longer than a block
}

TEST_CASE("case-28: window arithmetic of a stream of 2^40 tokens", "[data]") {
  const std::int64_t num_tokens = (1LL << 40) + 5;
  const StreamSplit split = make_split(num_tokens, 0.02, 1024);
  const SegmentedSplit& train = split.train;
  const TokenWindow last = train.window(train.num_windows() - 1);
  CHECK(last.begin + last.num_valid ==
        train.segment_begin(train.num_segments() - 1) + train.segment_length_tokens(train.num_segments() - 1) - 1);
  CHECK(train.num_targets() + split.validation->num_targets() ==
        num_tokens - train.num_segments() - split.validation->num_segments());
}

TEST_CASE("case-21: a stream too short for its splits is an error with the counts", "[data]") {
  CHECK_THAT(config_problem([] { make_split(3249, 0.02, 64); }),
             ContainsSubstring("3249 tokens") && ContainsSubstring("3250") && ContainsSubstring("50 blocks"));
  CHECK_THAT(config_problem([] { make_split(0, 0.0, 64); }), ContainsSubstring("0 tokens") && ContainsSubstring("65"));
  CHECK_THAT(config_problem([] { make_split(1, 0.5, 1); }), ContainsSubstring("1 tokens") && ContainsSubstring("4"));
  CHECK_NOTHROW(make_split(2, 0.0, 1));
  for (const double fraction : {-0.1, 0.51, 1.0, 1e-9, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THAT(config_problem([&] { make_split(1'000'000, fraction, 64); }), ContainsSubstring("validation_fraction"));
  }
}

TEST_CASE("samples equal a naive reading of the text", "[data]") {
  const TemporaryFolder folder;
  const std::string text = some_text(20000);
  const std::int64_t length = 48;
  const Dataset data = prepared(options_of(folder, folder.write("text", text), length));
  REQUIRE(data.validation() != nullptr);
  const std::int64_t block = make_split(20000, 0.02, length).block_tokens;

  // All windows of both splits, cut from segments that are cut from the text.
  std::multiset<Sample> expected_train;
  std::vector<Sample> expected_validation;
  for (std::int64_t begin = 0, b = 0; begin < 20000;) {
    std::int64_t end = begin;
    const bool is_validation = (b + 1) % 50 == 0;
    for (; end < 20000 && ((b + 1) % 50 == 0) == is_validation; ++b) end = std::min<std::int64_t>(end + block, 20000);
    const std::vector<std::int32_t> segment = ByteTokenizer::encode(
        std::string_view(text).substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    for (std::size_t at = 0; at + 1 < segment.size(); at += static_cast<std::size_t>(length)) {
      Sample sample{std::vector<std::int32_t>(48, 0), std::vector<std::int32_t>(48, -1)};
      for (std::size_t t = 0; t < 48 && at + t + 1 < segment.size(); ++t) {
        sample.tokens[t] = segment[at + t];
        sample.targets[t] = segment[at + t + 1];
      }
      if (is_validation) {
        expected_validation.push_back(sample);
      } else {
        expected_train.insert(sample);
      }
    }
    begin = end;
  }

  std::multiset<Sample> train;
  for (std::int64_t s = 0; s < data.train().num_windows(); ++s) train.insert(sample_of(data.train(), s));
  CHECK(train == expected_train);
  std::vector<Sample> validation;
  for (std::int64_t s = 0; s < data.validation()->num_windows(); ++s)
    validation.push_back(sample_of(*data.validation(), s));
  CHECK(validation == expected_validation);

  // Beyond its end a split read once gives samples that count nothing.
  const Sample beyond = sample_of(*data.validation(), data.validation()->num_windows());
  CHECK(beyond == Sample{std::vector<std::int32_t>(48, 0), std::vector<std::int32_t>(48, -1)});
  CHECK(data.validation()->num_valid_targets(data.validation()->num_windows()) == 0);
}

TEST_CASE("case-13: the number of valid targets is known without reading", "[data]") {
  const TemporaryFolder folder;
  const Dataset data = prepared(options_of(folder, folder.write("text", some_text(30000)), 100));
  std::set<std::int64_t> different;
  for (const SampleSource* source : {&data.train(), data.validation()}) {
    std::int64_t total = 0;
    for (std::int64_t s = 0; s < source->num_windows() + 3; ++s) {
      const std::int64_t counted = num_counted(sample_of(*source, s));
      REQUIRE(counted == source->num_valid_targets(s));
      different.insert(counted);
      if (s < source->num_windows()) total += counted;
    }
    CHECK(total == source->num_targets());
  }
  CHECK(different.size() > 1);
}

TEST_CASE("case-22: each epoch visits every window once, in an order that only seed and epoch decide", "[data]") {
  const TemporaryFolder folder;
  DatasetOptions options = options_of(folder, folder.write("text", some_text(50000)), 32);
  const Dataset data = prepared(options), again = Dataset::open(options);
  options.seed = 12;
  const Dataset other_seed = Dataset::open(options);
  const SampleSource& train = data.train();
  const std::int64_t n = train.num_windows();
  REQUIRE(n > 1000);

  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t s = epoch * n; s < (epoch + 1) * n; ++s) order.push_back(train.window_index(s));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    bool each_once = true;
    for (std::int64_t w = 0; w < n; ++w) each_once = each_once && order[static_cast<std::size_t>(w)] == w;
    CHECK(each_once);
  }
  CHECK(orders.size() == 4);

  // A resumed run asks a fresh object for a late sample first.
  std::int64_t same_with_other_seed = 0;
  for (std::int64_t s = 3 * n - 1; s >= n; --s) {
    REQUIRE(sample_of(again.train(), s) == sample_of(train, s));
    same_with_other_seed += other_seed.train().window_index(s) == train.window_index(s);
  }
  CHECK(same_with_other_seed < n / 10);
  CHECK_NOTHROW(train.window_index(std::int64_t{1} << 50));
  CHECK_THROWS_AS(train.window_index(-1), Error);
}

TEST_CASE("case-03 case-23: any number of data ranks sees the same samples and never runs out", "[data]") {
  const TemporaryFolder folder;
  const DatasetOptions options = options_of(folder, folder.write("text", some_text(5000)), 32);
  const Dataset data = prepared(options);
  const std::int64_t batch = 12, steps = 2 * data.train().num_windows() / batch + 3;  // well into the third epoch
  std::vector<Sample> expected;
  for (std::int64_t s = 0; s < steps * batch; ++s) expected.push_back(sample_of(data.train(), s));

  for (const std::int64_t data_ranks : {1, 2, 3, 4, 6}) {
    std::vector<Sample> seen(expected.size());
    std::vector<std::thread> threads;  // a rank each, with a data set of its own
    for (std::int64_t rank = 0; rank < data_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const Dataset mine = Dataset::open(options);
        const std::int64_t share = batch / data_ranks;
        for (std::int64_t step = 0; step < steps; ++step) {
          for (std::int64_t i = 0; i < share; ++i) {
            const std::int64_t s = step * batch + rank * share + i;
            seen[static_cast<std::size_t>(s)] = sample_of(mine.train(), s);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(seen == expected);
  }
}

TEST_CASE("one source serves several threads", "[data]") {
  const TemporaryFolder folder;
  const Dataset data = prepared(options_of(folder, folder.write("text", some_text(20000)), 64));
  const std::int64_t n = data.train().num_windows();
  std::vector<Sample> expected, seen(static_cast<std::size_t>(n));
  for (std::int64_t s = 0; s < n; ++s) expected.push_back(sample_of(data.train(), s));
  std::vector<std::thread> threads;
  for (std::int64_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (std::int64_t s = id; s < n; s += 4) seen[static_cast<std::size_t>(s)] = sample_of(data.train(), s);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(seen == expected);
}

TEST_CASE("a data set resolves the vocabulary and knows its bytes", "[data]") {
  const TemporaryFolder folder;
  DatasetOptions options = options_of(folder, folder.write("1.txt", some_text(10000)), 16);
  folder.write("2.txt", some_text(5000));
  const Dataset one = prepared(options);
  CHECK(one.vocab_size() == 257);
  CHECK(one.bytes_per_token() == 1.0);
  CHECK_THAT(one.description(), ContainsSubstring("10,000 tokens") && ContainsSubstring("validation: "));

  options.path = folder.path("*.txt");
  options.vocab_size = 70000;
  options.validation_fraction = 0;
  options.validate_ids = true;
  const Dataset two = prepared(options);
  CHECK(two.vocab_size() == 70000);
  CHECK(two.num_tokens() == 15001);
  CHECK(two.bytes_per_token() == 15000.0 / 15001.0);
  CHECK(two.validation() == nullptr);
  CHECK(two.train().num_targets() == 15000);
  CHECK_THAT(two.description(), ContainsSubstring("2 files") && ContainsSubstring("validation: none"));

  options.path = folder.write_ids("ids.bin", std::vector<std::uint16_t>(2000, 300), llm_c_header(2000));
  options.cache_dir.clear();
  options.vocab_size = 301;
  const Dataset tokens = prepared(options);
  CHECK(tokens.kind() == SourceKind::tokens);
  CHECK_FALSE(tokens.bytes_per_token());
  options.vocab_size = 300;  // case-24, through the front door
  CHECK_THAT(config_problem([&] { Dataset::open(options); }), ContainsSubstring("id 300 at token 0"));
}

TEST_CASE("case-21: bad options and data of a data set are all reported at once", "[data]") {
  const TemporaryFolder folder;
  folder.write("empty.txt", "");
  DatasetOptions options = options_of(folder, folder.path("empty.txt") + "," + folder.path("missing.txt"), 0);
  options.validation_fraction = 0.9;
  options.vocab_size = -1;
  const std::vector<std::string> problems = config_problems([&] { Dataset::prepare(options); });
  REQUIRE(problems.size() == 5);
  CHECK_THAT(problems[0], ContainsSubstring("train.sequence_length = 0"));
  CHECK_THAT(problems[1], ContainsSubstring("data.validation_fraction = 0.9"));
  CHECK_THAT(problems[2], ContainsSubstring("model.vocab_size = -1"));
  CHECK_THAT(problems[3], ContainsSubstring("empty.txt"));
  CHECK_THAT(problems[4], ContainsSubstring("missing.txt"));

  options = options_of(folder, folder.write("tiny.txt", "x"), 64);
  Dataset::prepare(options);
  CHECK_THAT(config_problem([&] { Dataset::open(options); }), ContainsSubstring("holds 1 tokens"));
  options.vocab_size = 256;
  CHECK_THAT(config_problem([&] { Dataset::open(options); }), ContainsSubstring("model.vocab_size = 256"));
  options = options_of(folder, folder.path("tiny.txt"), 64);
  options.tokenizer = "gpt2";
  CHECK_THAT(config_problem([&] { Dataset::open(options); }), ContainsSubstring("data.tokenizer = 'gpt2'"));
  options = options_of(folder, folder.write_ids<std::uint16_t>("t.bin", {1, 2, 3}), 1);
  CHECK_THAT(config_problem([&] { Dataset::open(options); }), ContainsSubstring("model.vocab_size = 0"));
  options = options_of(folder, folder.write("unprepared.txt", some_text(5000)), 16);
  CHECK_THROWS_AS(Dataset::open(options), IoError);
}
