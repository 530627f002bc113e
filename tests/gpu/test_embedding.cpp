// Embeddings on the GPU against their CPU twins. M rows, C channels, V tokens.
#include "potato/kernels/embedding.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"

using namespace potato;
using namespace potato::test;

namespace {

// `frequent` of 8 rows have token 3, so that its rows are far more than one chunk of the sum.
std::vector<std::int32_t> some_tokens(std::int64_t m, std::int64_t vocabulary, unsigned frequent) {
  std::mt19937 generator(17);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < m; ++i) {
    const unsigned value = generator();
    const bool is_frequent = value % 8 < frequent;
    tokens.push_back(is_frequent ? 3 : static_cast<std::int32_t>((value >> 3) % static_cast<unsigned>(vocabulary)));
  }
  return tokens;
}

struct Sizes {
  std::int64_t m, c, vocabulary;
  unsigned frequent;
};

constexpr Sizes sizes[] = {{1, 8, 5, 0},     {64, 16, 4, 8},       {65, 16, 4, 8},   {300, 7, 11, 1},
                           {1000, 33, 5, 0}, {4100, 768, 5030, 2}, {3000, 72, 9, 4}, {129, 1, 4, 8}};

std::string name_of(DType dtype, const Sizes& s) {
  return cat(dtype_name(dtype), ", M ", s.m, ", C ", s.c, ", V ", s.vocabulary, ", frequent ", s.frequent);
}

}  // namespace

TEST_CASE("token embeddings, whole and in shards of the vocabulary", "[gpu][kernel]") {
  for (const DType dtype : gpu_dtypes) {
    for (const Sizes& s : sizes) {
      for (const std::int64_t first : {0, 2}) {
        Gpu on;
        Stream cpu = twin_stream();
        INFO(name_of(dtype, s) << ", first token " << first);
        const std::int64_t num_tokens = s.vocabulary - 2 * first > 0 ? s.vocabulary - 2 * first : s.vocabulary - first;
        IntTwin tokens(on, some_tokens(s.m, s.vocabulary, s.frequent));
        Twin weight(on, dtype, {num_tokens, s.c}, 1), y(on, dtype, {s.m, s.c}, 2, 1e4), dy(on, dtype, {s.m, s.c}, 3);
        Twin gradient(on, DType::f32, {num_tokens, s.c}, 4), again(on, DType::f32, {num_tokens, s.c}, 4);
        embedding_forward(tokens.host(), weight.host(), first, y.host(), cpu);
        embedding_forward(tokens.device(), weight.device(), first, y.device(), on.stream);
        CHECK(y.device_values() == y.host_values());
        embedding_backward(tokens.host(), dy.host(), first, gradient.host(), cpu);
        embedding_backward(tokens.device(), dy.device(), first, gradient.device(), on.stream);
        embedding_backward(tokens.device(), dy.device(), first, again.device(), on.stream);
        CHECK(gradient.distance() <= tolerance(DType::f32));
        CHECK(gradient.device_values() == again.device_values());
      }
    }
  }
}

TEST_CASE("embedding_backward sums rows of rare tokens in the order of the CPU twin", "[gpu][kernel]") {
  Gpu on;
  Stream cpu = twin_stream();
  std::vector<std::int32_t> ids;  // 64 rows each of 50 tokens, in turn
  for (std::int32_t i = 0; i < 3200; ++i) ids.push_back(i % 50);
  IntTwin tokens(on, ids);
  Twin dy(on, DType::bf16, {3200, 128}, 1), gradient(on, DType::f32, {50, 128}, 2);
  embedding_backward(tokens.host(), dy.host(), 0, gradient.host(), cpu);
  embedding_backward(tokens.device(), dy.device(), 0, gradient.device(), on.stream);
  CHECK(gradient.device_values() == gradient.host_values());
}

TEST_CASE("embedding_backward of more rows than one batch", "[gpu][kernel]") {
  Gpu on;
  Stream cpu = twin_stream();
  const std::int64_t m = (1 << 20) + 1000, c = 8;
  IntTwin tokens(on, some_tokens(m, 1000, 1));
  Twin dy(on, DType::bf16, {m, c}, 1), gradient(on, DType::f32, {1000, c}, 2);
  embedding_backward(tokens.host(), dy.host(), 0, gradient.host(), cpu);
  embedding_backward(tokens.device(), dy.device(), 0, gradient.device(), on.stream);
  // Token 3 has 130,000 rows: the twin adds them one by one, which loses digits itself.
  CHECK(gradient.distance() <= 20 * tolerance(DType::f32));
}

TEST_CASE("positions with dropout, whole and as a shard of rows, in place too", "[gpu][kernel]") {
  for (const DType dtype : gpu_dtypes) {
    for (const Sizes& s : {Sizes{90, 7, 0, 0}, Sizes{90, 264, 0, 0}, Sizes{1, 4, 0, 0}, Sizes{1000, 768, 0, 0},
                           Sizes{61, 33, 0, 0}, Sizes{40, 2056, 0, 0}}) {
      for (const double p : {0.0, 0.25}) {
        for (const bool in_place : {false, true}) {
          Gpu on;
          Stream cpu = twin_stream();
          INFO(name_of(dtype, s) << ", p " << p << ", in place " << in_place);
          const std::int64_t sequence = 15;
          const Dropout dropout{p, philox_key(5, "embedding")};
          const TokenRows rows{(std::uint64_t{1} << 33) + 21, sequence, 4};
          Twin x(on, dtype, {s.m, s.c}, 1), y(on, dtype, {s.m, s.c}, 2, 1e4), dy(on, dtype, {s.m, s.c}, 3);
          Twin dx(on, dtype, {s.m, s.c}, 4, 1e4), positions(on, dtype, {sequence + 2, s.c}, 5);
          Twin gradient(on, DType::f32, {sequence + 2, s.c}, 6), again(on, DType::f32, {sequence + 2, s.c}, 6);
          Twin& out = in_place ? x : y;
          Twin& dout = in_place ? dy : dx;
          position_dropout_backward(dy.device(), y.device(), again.device(), dropout, rows, on.stream);
          on.stream.synchronize();
          position_dropout_forward(x.host(), positions.host(), out.host(), dropout, rows, cpu);
          position_dropout_forward(x.device(), positions.device(), out.device(), dropout, rows, on.stream);
          CHECK(out.distance() <= tolerance(dtype));
          position_dropout_backward(dy.host(), dout.host(), gradient.host(), dropout, rows, cpu);
          position_dropout_backward(dy.device(), dout.device(), gradient.device(), dropout, rows, on.stream);
          CHECK(dout.distance() <= tolerance(dtype));
          CHECK(gradient.distance() <= tolerance(DType::f32));
          CHECK(gradient.device_values() == again.device_values());
        }
      }
    }
  }
}
