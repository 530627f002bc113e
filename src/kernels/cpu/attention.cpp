// A thread takes a (sample, key/value head) pair. It packs K and V of that head once, then goes through the query heads
// of the group and blocks of queries; a [block, T] tile of scores is all that exists of [T, T]. All five products are
// made of register tiles (tile.hpp); causal masking leaves out the tiles that lie beyond the diagonal.
//
// Letters: T sequence, D width of a head, Dp and Tp: rounded up to whole tiles (the rest of the packed memory is zero).
#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "philox_blocks.hpp"
#include "tile.hpp"
#include "vector_math.hpp"

namespace potato::cpu {

namespace {

constexpr std::int64_t block_queries = 8 * tile_rows;
// Sums over keys run in chunks of this many, so that a panel of V or K stays in the first-level cache.
constexpr std::int64_t key_chunk = 192;

// Sizes of one head's packed memory.
template <typename T>
struct Extent {
  static constexpr std::int64_t columns = tile_columns<T>;
  std::int64_t t;
  std::int64_t d;
  bool causal;
  std::int64_t dp = round_up(d, columns);
  std::int64_t tp = round_up(t, columns) + tile_rows;        // a tile of keys as rows may go beyond the last panel
  std::int64_t score_row = round_up(tp, columns) + columns;  // off the powers of two, which alias in the cache

  // Keys that query q attends to.
  std::int64_t num_keys(std::int64_t q) const { return causal ? std::min(t, q + 1) : t; }
};

// [rows, d] with a row step to [rows, dp], times a factor; zeros beyond d.
template <typename T>
void pack_rows(const T* in, std::int64_t row_step, std::int64_t num_rows, std::int64_t d, std::int64_t dp, T factor,
               T* out) {
  for (std::int64_t i = 0; i < num_rows; ++i) {
    for (std::int64_t j = 0; j < d; ++j) out[i * dp + j] = in[i * row_step + j] * factor;
    std::fill(out + i * dp + d, out + (i + 1) * dp, T{0});
  }
}

// The transpose of [t, d] as panels [t / columns][d][columns]; zeros beyond t.
template <typename T>
void pack_transposed(const T* in, std::int64_t row_step, const Extent<T>& extent, T* out) {
  constexpr std::int64_t columns = tile_columns<T>;
  for (std::int64_t first = 0; first < extent.t; first += columns) {
    T* panel = out + first * extent.d;
    const std::int64_t filled = std::min(columns, extent.t - first);
    if (filled < columns) std::fill(panel, panel + columns * extent.d, T{0});
    for (std::int64_t i = 0; i < filled; ++i) {
      for (std::int64_t j = 0; j < extent.d; ++j) panel[j * columns + i] = in[(first + i) * row_step + j];
    }
  }
}

// scores [rows, score_row] = rows of a [rows, dp] times a transposed head (panels), for one block of queries.
template <typename T>
void multiply_scores(const Extent<T>& extent, std::int64_t first_query, std::int64_t num_rows, const T* a,
                     const T* panels, T* scores) {
  constexpr std::int64_t columns = tile_columns<T>;
  const std::int64_t num_keys = extent.num_keys(first_query + num_rows - 1);
  for (std::int64_t key = 0; key < num_keys; key += columns) {
    // The first tile of queries whose last query sees this panel.
    const std::int64_t ahead = extent.causal ? std::max<std::int64_t>(0, key - first_query) : 0;
    for (std::int64_t row = ahead / tile_rows * tile_rows; row < num_rows; row += tile_rows) {
      multiply_tile<false>(extent.d, a + row * extent.dp, extent.dp, 1, panels + key * extent.d, columns,
                           scores + row * extent.score_row + key, extent.score_row);
    }
  }
}

// out [rows, dp] = weights [rows, score_row] times a head [t, dp], each row over the keys its tile sees.
template <typename T>
void multiply_head(const Extent<T>& extent, std::int64_t first_query, std::int64_t num_rows, const T* weights,
                   const T* head, T* out) {
  std::fill(out, out + round_up(num_rows, tile_rows) * extent.dp, T{0});
  const std::int64_t num_keys = extent.num_keys(first_query + num_rows - 1);
  for (std::int64_t chunk = 0; chunk < num_keys; chunk += key_chunk) {
    for (std::int64_t column = 0; column < extent.dp; column += tile_columns<T>) {
      for (std::int64_t row = 0; row < num_rows; row += tile_rows) {
        const std::int64_t end = std::min(extent.num_keys(first_query + row + tile_rows - 1), chunk + key_chunk);
        if (end <= chunk) continue;
        multiply_tile<true>(end - chunk, weights + row * extent.score_row + chunk, extent.score_row, 1,
                            head + chunk * extent.dp + column, extent.dp, out + row * extent.dp + column, extent.dp);
      }
    }
  }
}

// dhead [t, dp] += transposed weights times rows [rows, dp].
template <typename T>
void add_to_head(const Extent<T>& extent, std::int64_t first_query, std::int64_t num_rows, const T* weights,
                 const T* rows, T* dhead) {
  const std::int64_t num_keys = extent.num_keys(first_query + num_rows - 1);
  for (std::int64_t key = 0; key < num_keys; key += tile_rows) {
    const std::int64_t begin = extent.causal ? std::max<std::int64_t>(0, key - first_query) : 0;
    for (std::int64_t column = 0; column < extent.dp; column += tile_columns<T>) {
      multiply_tile<true>(num_rows - begin, weights + begin * extent.score_row + key, 1, extent.score_row,
                          rows + begin * extent.dp + column, extent.dp, dhead + key * extent.dp + column, extent.dp);
    }
  }
}

// The part of the dropout mask that belongs to one head of one sample.
class HeadMask {
 public:
  HeadMask(const AttentionTask& task, std::int64_t sample, std::int64_t head)
      : on_(task.dropout.p > 0),
        key_(task.dropout.key),
        threshold_(on_ ? dropout_threshold(task.dropout.p) : 0),
        sample_(task.first_sample + static_cast<std::uint64_t>(sample)),
        first_channel_(static_cast<std::uint64_t>(task.shape.first_head + head) *
                       static_cast<std::uint64_t>(task.shape.sequence)) {}

  bool is_on() const { return on_; }

  static std::int64_t buffer_elems(std::int64_t num_keys) { return num_keys + 4 * (philox_lanes + 1); }

  // Sets values[j] to 0 where (query, key j) is dropped, for j < num_keys. `bits` has buffer_elems.
  template <typename T>
  void apply(std::int64_t query, std::int64_t num_keys, std::uint32_t* bits, T* values) const {
    const std::uint32_t* lane = draw(query, num_keys, bits);
    const std::uint32_t threshold = threshold_;
#pragma omp simd
    for (std::int64_t j = 0; j < num_keys; ++j) values[j] = lane[j] >= threshold ? values[j] : T{0};
  }

  // Draws the integers of keys 0 to num_keys − 1 and returns where in `bits` they begin.
  const std::uint32_t* draw(std::int64_t query, std::int64_t num_keys, std::uint32_t* bits) const {
    const std::uint64_t skip = first_channel_ & 3;
    const std::uint64_t num_blocks = (skip + static_cast<std::uint64_t>(num_keys) + 3) / 4;
    const PhiloxBlock first =
        philox_counter(RandomDomain::dropout, sample_, static_cast<std::uint32_t>(query), first_channel_);
    for (std::uint64_t block = 0; block < num_blocks; block += philox_lanes) {
      philox_blocks({first[0] + static_cast<std::uint32_t>(block), first[1], first[2], first[3]}, key_,
                    bits + 4 * block);
    }
    return bits + skip;
  }

  std::uint32_t threshold() const { return threshold_; }

 private:
  bool on_;
  PhiloxKey key_;
  std::uint32_t threshold_;
  std::uint64_t sample_;
  std::uint64_t first_channel_;
};

// exp(scores − max) in place; returns the log of the sum of exponentials, sets `inverse` to 1 / sum.
template <typename T>
T softmax_row(T* scores, std::int64_t num_keys, T& inverse) {
  T maximum = std::numeric_limits<T>::lowest();
#pragma omp simd reduction(max : maximum)
  for (std::int64_t j = 0; j < num_keys; ++j) maximum = scores[j] > maximum ? scores[j] : maximum;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < num_keys; ++j) {
    const T value = fast_exp(scores[j] - maximum);
    scores[j] = value;
    sum += value;
  }
  inverse = 1 / sum;
  return maximum + std::log(sum);
}

// Where the rows of a head begin in qkv and in y.
struct HeadPlace {
  std::int64_t query;
  std::int64_t key;
  std::int64_t value;
  std::int64_t output;
  std::int64_t qkv_row;
  std::int64_t output_row;

  HeadPlace(const AttentionShape& s, std::int64_t sample, std::int64_t head, std::int64_t kv_head)
      : qkv_row((s.num_heads + 2 * s.num_kv_heads) * s.head_dim), output_row(s.num_heads * s.head_dim) {
    const std::int64_t row = sample * s.sequence;
    query = row * qkv_row + head * s.head_dim;
    key = row * qkv_row + (s.num_heads + kv_head) * s.head_dim;
    value = row * qkv_row + (s.num_heads + s.num_kv_heads + kv_head) * s.head_dim;
    output = row * output_row + head * s.head_dim;
  }
};

template <typename T>
void forward_group(const AttentionTask& task, std::int64_t sample, std::int64_t kv_head, const T* qkv, T* y, T* lse) {
  const AttentionShape& s = task.shape;
  const Extent<T> extent{s.sequence, s.head_dim, s.causal};
  const std::int64_t head_elems = extent.tp * extent.dp;
  const std::int64_t block_elems = block_queries * extent.dp;
  T* keys = thread_scratch<T>(2 * head_elems + 2 * block_elems + block_queries * extent.score_row);
  T* values = keys + head_elems;
  T* queries = values + head_elems;
  T* outputs = queries + block_elems;
  T* scores = outputs + block_elems;
  std::uint32_t* bits = thread_scratch<std::uint32_t>(HeadMask::buffer_elems(extent.t));

  const std::int64_t group = s.num_heads / s.num_kv_heads;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const HeadPlace place(s, sample, head, kv_head);
    if (head == kv_head * group) {
      pack_transposed(qkv + place.key, place.qkv_row, extent, keys);
      pack_rows(qkv + place.value, place.qkv_row, extent.t, extent.d, extent.dp, T{1}, values);
    }
    const HeadMask mask(task, sample, head);
    T* head_lse = lse + (sample * s.num_heads + head) * extent.t;
    for (std::int64_t first = 0; first < extent.t; first += block_queries) {
      const std::int64_t num_rows = std::min(block_queries, extent.t - first);
      pack_rows(qkv + place.query + first * place.qkv_row, place.qkv_row, num_rows, extent.d, extent.dp,
                static_cast<T>(s.scale), queries);
      std::fill(queries + num_rows * extent.dp, queries + round_up(num_rows, tile_rows) * extent.dp, T{0});
      multiply_scores(extent, first, num_rows, queries, keys, scores);
      T inverse[block_queries];
      const std::int64_t tile_end = extent.num_keys(first + num_rows - 1 + tile_rows);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        T* row = scores + i * extent.score_row;
        const std::int64_t num_keys = extent.num_keys(first + i);
        head_lse[first + i] = softmax_row(row, num_keys, inverse[i]);
        if (mask.is_on()) {
          mask.apply(first + i, num_keys, bits, row);
          inverse[i] /= static_cast<T>(1 - task.dropout.p);
        }
        for (std::int64_t j = num_keys; j < tile_end; ++j) row[j] = 0;
      }
      multiply_head(extent, first, num_rows, scores, values, outputs);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        T* out = y + place.output + (first + i) * place.output_row;
        for (std::int64_t j = 0; j < extent.d; ++j) out[j] = outputs[i * extent.dp + j] * inverse[i];
      }
    }
  }
}

// Turns the scores of one query into dropped probabilities, and the gradients of those into gradients of the scores.
template <typename T>
void softmax_backward_row(T* scores, T* gradients, std::int64_t num_keys, T lse, T row_sum) {
#pragma omp simd
  for (std::int64_t j = 0; j < num_keys; ++j) {
    const T probability = fast_exp(scores[j] - lse);
    scores[j] = probability;
    gradients[j] = probability * (gradients[j] - row_sum);
  }
}

template <typename T>
void softmax_backward_row(T* scores, T* gradients, std::int64_t num_keys, T lse, T row_sum, const std::uint32_t* bits,
                          std::uint32_t threshold) {
#pragma omp simd
  for (std::int64_t j = 0; j < num_keys; ++j) {
    const T probability = fast_exp(scores[j] - lse);
    const T kept = bits[j] >= threshold ? T{1} : T{0};
    scores[j] = probability * kept;
    gradients[j] = probability * (gradients[j] * kept - row_sum);
  }
}

template <typename T>
struct BackwardTensors {
  const T* dy;
  const T* qkv;
  const T* y;
  const T* lse;
  T* dqkv;
  T* row_sums;
};

template <typename T>
void backward_group(const AttentionTask& task, std::int64_t sample, std::int64_t kv_head,
                    const BackwardTensors<T>& tensors) {
  const AttentionShape& s = task.shape;
  const Extent<T> extent{s.sequence, s.head_dim, s.causal};
  const std::int64_t d = extent.d;
  const std::int64_t dp = extent.dp;
  const std::int64_t head_elems = extent.tp * dp;
  const std::int64_t block_elems = block_queries * dp;
  const std::int64_t score_elems = block_queries * extent.score_row;
  T* keys_transposed = thread_scratch<T>(5 * head_elems + 3 * block_elems + 2 * score_elems);
  T* values_transposed = keys_transposed + head_elems;
  T* keys = values_transposed + head_elems;
  T* dkeys = keys + head_elems;
  T* dvalues = dkeys + head_elems;
  T* queries = dvalues + head_elems;
  T* douts = queries + block_elems;
  T* dqueries = douts + block_elems;
  T* scores = dqueries + block_elems;
  T* dscores = scores + score_elems;
  std::uint32_t* bits = thread_scratch<std::uint32_t>(HeadMask::buffer_elems(extent.t));

  const std::int64_t group = s.num_heads / s.num_kv_heads;
  const T kept_factor = static_cast<T>(1 / (1 - task.dropout.p));
  const HeadPlace shared(s, sample, 0, kv_head);
  pack_transposed(tensors.qkv + shared.key, shared.qkv_row, extent, keys_transposed);
  pack_transposed(tensors.qkv + shared.value, shared.qkv_row, extent, values_transposed);
  pack_rows(tensors.qkv + shared.key, shared.qkv_row, extent.t, d, dp, T{1}, keys);
  std::fill(dkeys, dkeys + 2 * head_elems, T{0});  // dvalues too

  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const HeadPlace place(s, sample, head, kv_head);
    const HeadMask mask(task, sample, head);
    const std::int64_t first_row = (sample * s.num_heads + head) * extent.t;
    for (std::int64_t first = 0; first < extent.t; first += block_queries) {
      const std::int64_t num_rows = std::min(block_queries, extent.t - first);
      const std::int64_t padded_rows = round_up(num_rows, tile_rows);
      const std::int64_t y_begin = place.output + first * place.output_row;
      pack_rows(tensors.qkv + place.query + first * place.qkv_row, place.qkv_row, num_rows, d, dp,
                static_cast<T>(s.scale), queries);
      pack_rows(tensors.dy + y_begin, place.output_row, num_rows, d, dp, kept_factor, douts);
      std::fill(queries + num_rows * dp, queries + padded_rows * dp, T{0});
      std::fill(douts + num_rows * dp, douts + padded_rows * dp, T{0});
      multiply_scores(extent, first, num_rows, queries, keys_transposed, scores);
      multiply_scores(extent, first, num_rows, douts, values_transposed, dscores);
      const std::int64_t zero_end = extent.num_keys(first + num_rows - 1) + tile_rows;
      for (std::int64_t i = 0; i < num_rows; ++i) {
        const T* y_row = tensors.y + y_begin + i * place.output_row;
        const T* dy_row = tensors.dy + y_begin + i * place.output_row;
        T row_sum = 0;
#pragma omp simd reduction(+ : row_sum)
        for (std::int64_t j = 0; j < d; ++j) row_sum += y_row[j] * dy_row[j];
        tensors.row_sums[first_row + first + i] = row_sum;
        T* score = scores + i * extent.score_row;
        T* dscore = dscores + i * extent.score_row;
        const std::int64_t num_keys = extent.num_keys(first + i);
        const T lse = tensors.lse[first_row + first + i];
        if (mask.is_on()) {
          const std::uint32_t* drawn = mask.draw(first + i, num_keys, bits);
          softmax_backward_row(score, dscore, num_keys, lse, row_sum, drawn, mask.threshold());
        } else {
          softmax_backward_row(score, dscore, num_keys, lse, row_sum);
        }
        std::fill(score + num_keys, score + zero_end, T{0});
        std::fill(dscore + num_keys, dscore + zero_end, T{0});
      }
      add_to_head(extent, first, num_rows, scores, douts, dvalues);
      add_to_head(extent, first, num_rows, dscores, queries, dkeys);
      multiply_head(extent, first, num_rows, dscores, keys, dqueries);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        T* out = tensors.dqkv + place.query + (first + i) * place.qkv_row;
        for (std::int64_t j = 0; j < d; ++j) out[j] = dqueries[i * dp + j] * static_cast<T>(s.scale);
      }
    }
  }
  for (std::int64_t i = 0; i < extent.t; ++i) {
    std::copy(dkeys + i * dp, dkeys + i * dp + d, tensors.dqkv + shared.key + i * shared.qkv_row);
    std::copy(dvalues + i * dp, dvalues + i * dp + d, tensors.dqkv + shared.value + i * shared.qkv_row);
  }
}

}  // namespace

template <typename T>
void attention_forward(const AttentionTask& task, const T* qkv, T* y, T* lse) {
  const std::int64_t num_groups = task.shape.batch * task.shape.num_kv_heads;
#pragma omp parallel for schedule(static) if (num_groups > 1)
  for (std::int64_t group = 0; group < num_groups; ++group) {
    forward_group(task, group / task.shape.num_kv_heads, group % task.shape.num_kv_heads, qkv, y, lse);
  }
}

template <typename T>
void attention_backward(const AttentionTask& task, const T* dy, const T* qkv, const T* y, const T* lse, T* dqkv,
                        T* row_sums) {
  const std::int64_t num_groups = task.shape.batch * task.shape.num_kv_heads;
  const BackwardTensors<T> tensors{dy, qkv, y, lse, dqkv, row_sums};
#pragma omp parallel for schedule(static) if (num_groups > 1)
  for (std::int64_t group = 0; group < num_groups; ++group) {
    backward_group(task, group / task.shape.num_kv_heads, group % task.shape.num_kv_heads, tensors);
  }
}

template void attention_forward(const AttentionTask&, const float*, float*, float*);
template void attention_forward(const AttentionTask&, const double*, double*, double*);
template void attention_backward(const AttentionTask&, const float*, const float*, const float*, const float*, float*,
                                 float*);
template void attention_backward(const AttentionTask&, const double*, const double*, const double*, const double*,
                                 double*, double*);

}  // namespace potato::cpu
