// Tokenizer, sources, token files and the token cache.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <numeric>

#include "potato/data/sources.hpp"
#include "potato/data/token_cache.hpp"
#include "potato/data/token_file.hpp"
#include "potato/data/tokenizer.hpp"
#include "support/catch.hpp"
#include "test_data_support.hpp"

using namespace potato;
using namespace potato::test;
namespace fs = std::filesystem;

namespace {

std::vector<std::int32_t> all_tokens(const TokenStream& stream) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.num_tokens()));
  stream.read(0, stream.num_tokens(), tokens.data());
  return tokens;
}

std::int64_t num_files_in(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

}  // namespace

TEST_CASE("byte tokens decode to the bytes they came from", "[data]") {
  const std::string text = some_text(1000) + std::string("\0\xFF tail", 7);
  const std::vector<std::int32_t> tokens = ByteTokenizer::encode(text);
  CHECK(tokens.size() == text.size());
  CHECK(*std::min_element(tokens.begin(), tokens.end()) == 0);
  CHECK(*std::max_element(tokens.begin(), tokens.end()) == 255);
  CHECK(ByteTokenizer::decode(tokens) == text);
  CHECK(ByteTokenizer::decode(std::vector<std::int32_t>{'a', 256, 'b', 300, -1}) == "ab\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(ByteTokenizer::num_bytes(255) == 1);
  CHECK(ByteTokenizer::num_bytes(256) == 0);
}

TEST_CASE("data.path takes files and globs, sorted within a glob", "[data]") {
  const TemporaryFolder folder;
  for (const char* name : {"b2.txt", "b10.txt", "b1.txt", "a.txt", "odd[1].txt"}) folder.write(name, "x");
  CHECK(expand_paths(folder.path("b*.txt")) ==
        std::vector{folder.path("b1.txt"), folder.path("b10.txt"), folder.path("b2.txt")});
  CHECK(expand_paths(cat(" ", folder.path("b2.txt"), " , ", folder.path("a*"))) ==
        std::vector{folder.path("b2.txt"), folder.path("a.txt")});
  CHECK(expand_paths(folder.path("odd[1].txt")) == std::vector{folder.path("odd[1].txt")});
}

TEST_CASE("every file that cannot be read as data is named, all at once", "[data]") {
  const TemporaryFolder folder;
  folder.write("good.txt", "x");
  folder.write("empty.txt", "");
  fs::create_directory(folder.path("sub"));
  fs::create_symlink("loop", folder.path("loop"));
  const std::vector<std::string> problems = config_problems([&] {
    expand_paths(cat(folder.path("good.txt"), ",", folder.path("missing.txt"), ",", folder.path("empty.txt"), ",",
                     folder.path("sub"), ",", folder.path("loop"), ",,", folder.path("*.bin"), ",",
                     folder.path("go?d.txt")));
  });
  REQUIRE(problems.size() == 7);
  CHECK_THAT(problems[0], ContainsSubstring("empty entry"));
  CHECK_THAT(problems[1], ContainsSubstring("no file matches") && ContainsSubstring("*.bin"));
  CHECK_THAT(problems[2], ContainsSubstring("missing.txt") && ContainsSubstring("No such file"));
  CHECK_THAT(problems[3], ContainsSubstring("empty.txt") && ContainsSubstring("0 bytes"));
  CHECK_THAT(problems[4], ContainsSubstring("sub") && ContainsSubstring("directory"));
  CHECK_THAT(problems[5], ContainsSubstring("loop") && ContainsSubstring("symbolic links"));
  CHECK_THAT(problems[6], ContainsSubstring("good.txt") && ContainsSubstring("twice"));
  CHECK_THAT(config_problem([] { expand_paths("  "); }), ContainsSubstring("is empty"));
}

TEST_CASE("text and token files do not mix", "[data]") {
  CHECK(source_kind({"a.txt", "b"}) == SourceKind::text);
  CHECK(source_kind({"a.bin", "b.bin"}) == SourceKind::tokens);
  CHECK_THAT(config_problem([] { source_kind({"a.bin", "b.txt"}); }), ContainsSubstring("mixes"));
}

TEST_CASE("token files of llm.c and nanoGPT read as one stream", "[data]") {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> first(3000), second(2001);
  std::iota(first.begin(), first.end(), std::uint16_t{0});
  std::iota(second.begin(), second.end(), std::uint16_t{50000});
  std::vector<std::int32_t> expected(first.begin(), first.end());
  expected.insert(expected.end(), second.begin(), second.end());

  const TokenStream stream =
      TokenStream::open({folder.write_ids("one.bin", first, llm_c_header(3000)), folder.write_ids("two.bin", second)});
  CHECK(stream.files()[0].format() == TokenFormat::llm_c);
  CHECK(stream.files()[1].format() == TokenFormat::nano_gpt);
  REQUIRE(stream.num_tokens() == 5001);
  CHECK(all_tokens(stream) == expected);
  CHECK(stream.files()[1][2000] == 52000);
  std::vector<std::int32_t> part(4);
  stream.read(2998, 4, part.data());
  CHECK(part == std::vector<std::int32_t>{2998, 2999, 50000, 50001});
  stream.read(5001, 0, part.data());
  CHECK_THROWS_AS(stream.read(4998, 4, part.data()), Error);
  CHECK_THROWS_AS(stream.read(-1, 2, part.data()), Error);
  CHECK_THROWS_AS(stream.files()[0][3000], Error);
}

TEST_CASE("a token file whose content contradicts itself is refused with the numbers", "[data]") {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> ids(10, 7);
  const auto problem = [&](const std::string& path) { return config_problem([&] { TokenStream::open({path}); }); };
  CHECK_THAT(problem(folder.write_ids("count.bin", ids, llm_c_header(11))),
             ContainsSubstring("11 tokens") && ContainsSubstring("1046 bytes") && ContainsSubstring("1044 bytes"));
  CHECK_THAT(problem(folder.write_ids("version.bin", ids, llm_c_header(10, 2))), ContainsSubstring("version 2"));
  CHECK_THAT(problem(folder.write_ids("llama.bin", ids, llm_c_header(10, 7, 20240801))), ContainsSubstring("20240801"));
  CHECK_THAT(problem(folder.write("none.bin", llm_c_header(0))), ContainsSubstring("0 tokens"));
  CHECK_THAT(problem(folder.write("negative.bin", llm_c_header(-4))), ContainsSubstring("-4 tokens"));
  CHECK_THAT(problem(folder.write("short.bin", llm_c_header(1).substr(0, 100))), ContainsSubstring("100 bytes"));
  CHECK_THAT(problem(folder.write("odd.bin", "abc")), ContainsSubstring("3 bytes"));
  CHECK_THAT(problem(folder.write("empty.bin", "")), ContainsSubstring("0 bytes"));
  CHECK_THROWS_AS(TokenFile::open(folder.path("missing.bin")), IoError);
  CHECK(config_problems([&] { TokenStream::open({folder.path("odd.bin"), folder.path("short.bin")}); }).size() == 2);
}

TEST_CASE("case-24: an id beyond the vocabulary is refused with its position", "[data]") {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(100000, 50256);
  const TokenStream good = TokenStream::open({folder.write_ids("good.bin", ids)});
  CHECK_NOTHROW(good.check_ids(50257));
  CHECK_NOTHROW(good.check_ids(70000));
  CHECK_THAT(config_problem([&] { good.check_ids(50256); }), ContainsSubstring("token 0,"));

  ids[65535] = 50257;
  ids[99999] = 65535;
  const TokenStream bad = TokenStream::open({folder.path("good.bin"), folder.write_ids("bad.bin", ids)});
  CHECK_THAT(config_problem([&] { bad.check_ids(50257); }),
             ContainsSubstring("bad.bin") && ContainsSubstring("id 50257") && ContainsSubstring("token 65535"));
  CHECK_THAT(config_problem([&] { bad.check_ids(65535); }), ContainsSubstring("token 99999"));
  CHECK_NOTHROW(bad.check_ids(65536));
}

TEST_CASE("text becomes a cached token file, end-of-text between files", "[data]") {
  const TemporaryFolder folder;
  const std::string big = some_text((1 << 18) + 12345), small = "two";  // more than one block of the writer
  const std::vector<std::string> files = {folder.write("1.txt", big), folder.write("2.txt", small)};
  const std::string cache_dir = folder.path("made/cache");
  std::vector<std::int32_t> expected = ByteTokenizer::encode(big);
  expected.push_back(256);
  for (const std::int32_t token : ByteTokenizer::encode(small)) expected.push_back(token);

  const TokenFileInfo info = prepare_token_cache(files, cache_dir, 257);
  CHECK_FALSE(info.reused);
  CHECK(info.path == token_cache_path(files, cache_dir, 257));
  CHECK(info.width_bytes == 2);
  const TokenStream stream = TokenStream::open({info.path});
  CHECK(stream.files()[0].format() == TokenFormat::cache);
  CHECK(all_tokens(stream) == expected);
  CHECK(info.num_tokens == stream.num_tokens());
  CHECK(prepare_token_cache(files, cache_dir, 257).reused);
  CHECK(num_files_in(cache_dir) == 1);

  SECTION("a changed source makes another cache") {
    folder.write("2.txt", "three");
    const TokenFileInfo changed = prepare_token_cache(files, cache_dir, 257);
    CHECK_FALSE(changed.reused);
    CHECK(changed.path != info.path);
  }
  SECTION("a newer modification time too") {
    fs::last_write_time(files[1], fs::last_write_time(files[1]) + std::chrono::nanoseconds(1000));
    CHECK_FALSE(prepare_token_cache(files, cache_dir, 257).reused);
  }
  SECTION("a cut or foreign cache is written anew") {
    fs::resize_file(info.path, 1000);
    CHECK_THAT(config_problem([&] { TokenFile::open(info.path); }), ContainsSubstring("remove it"));
    CHECK_FALSE(prepare_token_cache(files, cache_dir, 257).reused);
    std::ofstream(info.path, std::ios::binary) << "something else";
    CHECK_FALSE(prepare_token_cache(files, cache_dir, 257).reused);
    CHECK(all_tokens(TokenStream::open({info.path})) == expected);
  }
}

TEST_CASE("case-24: the width of cached tokens follows the vocabulary", "[data]") {
  const TemporaryFolder folder;
  const std::vector<std::string> files = {folder.write("1.txt", "wide \xFF"), folder.write("2.txt", "b")};
  CHECK(token_width_bytes(257) == 2);
  CHECK(token_width_bytes(65536) == 2);
  CHECK(token_width_bytes(65537) == 4);
  const TokenFileInfo narrow = prepare_token_cache(files, folder.path("cache"), 257);
  const TokenFileInfo wide = prepare_token_cache(files, folder.path("cache"), 70000);
  CHECK(wide.width_bytes == 4);
  CHECK(wide.path != narrow.path);
  CHECK(fs::file_size(wide.path) == 64 + 4 * 8);
  CHECK(all_tokens(TokenStream::open({wide.path})) == all_tokens(TokenStream::open({narrow.path})));

  // Ids that 16 bits would cut survive, and are checked.
  TokenCacheHeader header{.width_bytes = 4, .num_tokens = 3};
  const std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  const TokenStream stream =
      TokenStream::open({folder.write_ids<std::uint32_t>("ids.tok", {65536, 69999, 4000000000u}, bytes)});
  CHECK(stream.files()[0][0] == 65536);
  CHECK(stream.files()[0][1] == 69999);
  CHECK_THAT(config_problem([&] { stream.check_ids(70000); }),
             ContainsSubstring("id 4000000000") && ContainsSubstring("token 2"));
}

TEST_CASE("a cache that cannot be written is an error with the system's words, and leaves nothing", "[data]") {
  const TemporaryFolder folder;
  const std::vector<std::string> files = {folder.write("1.txt", some_text(100000))};
  const std::string in_the_way = folder.write("plain", "x");
  CHECK_THAT(config_problem([&] { prepare_token_cache(files, in_the_way + "/cache", 257); }),
             ContainsSubstring("data.cache_dir") && ContainsSubstring("Not a directory"));
  CHECK_THAT(config_problem([&] { prepare_token_cache(files, "/proc/self/net", 257); }),
             ContainsSubstring("cannot be written to"));

  // A limit on the file's length stands for a full disk: both make write(2) fail midway.
  const std::string cache_dir = folder.path("cache");
  rlimit old_limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  const rlimit small_limit{.rlim_cur = 50000, .rlim_max = old_limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small_limit) == 0);
  std::string message;
  try {
    prepare_token_cache(files, cache_dir, 257);
  } catch (const IoError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  CHECK_THAT(message, ContainsSubstring("cannot write") && ContainsSubstring("File too large"));
  CHECK(num_files_in(cache_dir) == 0);
}
