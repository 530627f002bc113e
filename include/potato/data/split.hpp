// How a stream of tokens becomes train and validation windows. Pure arithmetic; no table, nothing is read.
//
// The stream is cut in blocks; every k-th block (k = round(1 / validation_fraction)) is a segment of the validation
// split, each run of blocks between two of them a segment of the train split:
//
//   block     0    1   ..  k-2   k-1    k   ..  2k-2   2k-1   ..
//            [---- train ----]  [val]  [--- train ---]  [val]
//
// A segment of n tokens has n - 1 targets (each token after the first), cut into windows of T. The last window of a
// segment may be shorter: it is padded, never dropped, so every target of a segment is in exactly one window.
#pragma once

#include <cstdint>
#include <optional>

namespace potato {

// Inputs of a window: tokens [begin, begin + num_valid); its targets: tokens [begin + 1, begin + 1 + num_valid).
struct TokenWindow {
  std::int64_t begin = 0;
  std::int64_t num_valid = 0;  // 1 to T
};

// One split: segments of equal length at a fixed stride; the last may be shorter because the stream ends.
class SegmentedSplit {
 public:
  // Segment i holds tokens [first + i * stride, first + i * stride + segment) as far as they are below num_tokens.
  SegmentedSplit(std::int64_t first_tokens, std::int64_t stride_tokens, std::int64_t segment_tokens,
                 std::int64_t num_tokens, std::int64_t sequence_length);

  std::int64_t num_segments() const noexcept { return num_segments_; }
  std::int64_t segment_begin(std::int64_t segment) const noexcept { return first_tokens_ + segment * stride_tokens_; }
  std::int64_t segment_length_tokens(std::int64_t segment) const noexcept;

  std::int64_t num_windows() const noexcept { return num_windows_; }
  std::int64_t num_targets() const noexcept { return num_targets_; }  // valid ones, over all windows

  // Window w in [0, num_windows), in the order of the stream; O(1). Throws Error out of range.
  TokenWindow window(std::int64_t w) const;

 private:
  std::int64_t first_tokens_, stride_tokens_, segment_tokens_, num_tokens_, sequence_length_;
  std::int64_t num_segments_ = 0;
  std::int64_t windows_per_segment_ = 0;  // of a full one
  std::int64_t num_windows_ = 0;
  std::int64_t num_targets_ = 0;
};

struct StreamSplit {
  std::int64_t block_tokens = 0;
  std::int64_t validation_every_blocks = 0;  // k, or 0: no validation
  SegmentedSplit train;
  std::optional<SegmentedSplit> validation;
};

// Blocks have 65,536 tokens; for a stream of fewer than 2k blocks they are halved until there are 2k, but never below
// sequence_length + 1 tokens. Throws ConfigError, with the counts, where validation_fraction is not 0 or in
// (0, 0.5], or where the stream is too short to give each split one full window.
StreamSplit make_split(std::int64_t num_tokens, double validation_fraction, std::int64_t sequence_length);

}  // namespace potato
