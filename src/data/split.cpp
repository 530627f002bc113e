#include "potato/data/split.hpp"

#include <algorithm>
#include <cmath>

#include "potato/core/error.hpp"

namespace potato {

namespace {

constexpr std::int64_t default_block_tokens = 65536;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

SegmentedSplit::SegmentedSplit(std::int64_t first_tokens, std::int64_t stride_tokens, std::int64_t segment_tokens,
                               std::int64_t num_tokens, std::int64_t sequence_length)
    : first_tokens_(first_tokens),
      stride_tokens_(stride_tokens),
      segment_tokens_(segment_tokens),
      num_tokens_(num_tokens),
      sequence_length_(sequence_length) {
  PC_CHECK(first_tokens >= 0 && segment_tokens >= 2 && stride_tokens >= segment_tokens && sequence_length >= 1);
  if (num_tokens <= first_tokens) return;
  num_segments_ = ceil_div(num_tokens - first_tokens, stride_tokens);
  windows_per_segment_ = ceil_div(segment_tokens - 1, sequence_length);
  const std::int64_t targets_in_last = segment_length_tokens(num_segments_ - 1) - 1;
  num_windows_ = (num_segments_ - 1) * windows_per_segment_ + ceil_div(targets_in_last, sequence_length);
  num_targets_ = (num_segments_ - 1) * (segment_tokens - 1) + targets_in_last;
}

std::int64_t SegmentedSplit::segment_length_tokens(std::int64_t segment) const noexcept {
  return std::min(segment_tokens_, num_tokens_ - segment_begin(segment));
}

TokenWindow SegmentedSplit::window(std::int64_t w) const {
  PC_CHECK(w >= 0 && w < num_windows_, "window ", w, " of ", num_windows_);
  const std::int64_t segment = w / windows_per_segment_;
  const std::int64_t offset = (w % windows_per_segment_) * sequence_length_;
  return {segment_begin(segment) + offset, std::min(sequence_length_, segment_length_tokens(segment) - 1 - offset)};
}

StreamSplit make_split(std::int64_t num_tokens, double validation_fraction, std::int64_t sequence_length) {
  PC_CHECK(num_tokens >= 0 && sequence_length >= 1, num_tokens, " tokens, sequence length ", sequence_length);
  if (!(validation_fraction == 0.0 || (validation_fraction >= 1e-6 && validation_fraction <= 0.5))) {
    throw ConfigError(cat("data.validation_fraction = ", validation_fraction,
                          " is out of range; valid are 0 (no validation) and 0.000001 to 0.5."));
  }
  const std::int64_t min_block_tokens = sequence_length + 1;
  const std::int64_t every_blocks = validation_fraction == 0.0 ? 0 : std::llround(1.0 / validation_fraction);
  const std::int64_t min_tokens = std::max<std::int64_t>(every_blocks, 1) * min_block_tokens;
  if (num_tokens < min_tokens) {
    std::string needs = cat("a window of train.sequence_length = ", sequence_length, " needs ", min_block_tokens);
    if (every_blocks > 0) {
      needs += cat(", and with data.validation_fraction = ", validation_fraction, " one of every ", every_blocks,
                   " blocks is for validation, so at least ", min_tokens, " tokens are needed");
    }
    throw ConfigError(cat("data.path holds ", num_tokens, " tokens, too few: ", needs, "."));
  }
  if (every_blocks == 0) {
    return {num_tokens, 0, SegmentedSplit(0, num_tokens, num_tokens, num_tokens, sequence_length), std::nullopt};
  }
  std::int64_t block_tokens = std::max(default_block_tokens, min_block_tokens);
  while (num_tokens / block_tokens < 2 * every_blocks && block_tokens > min_block_tokens)
    block_tokens = std::max(block_tokens / 2, min_block_tokens);
  const std::int64_t stride_tokens = every_blocks * block_tokens, train_tokens = stride_tokens - block_tokens;
  return {block_tokens, every_blocks, SegmentedSplit(0, stride_tokens, train_tokens, num_tokens, sequence_length),
          SegmentedSplit(train_tokens, stride_tokens, block_tokens, num_tokens, sequence_length)};
}

}  // namespace potato
