// Samples as a pure function of a global sample number: there is no state to save, and the order of samples is the same
// on any process grid.
//
// T: sequence length.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "potato/core/philox.hpp"
#include "potato/data/split.hpp"
#include "potato/data/token_file.hpp"

namespace potato {

enum class SampleOrder : std::uint8_t {
  permuted_epochs,  // training: for ever, each epoch another permutation of the windows
  once_in_order,    // validation: each window once; samples beyond the last are wholly ignored
};

class SampleSource {
 public:
  static constexpr std::int32_t ignored_target = -1;
  static constexpr std::int32_t padding_token = 0;

  // `name` ("train", "validation") is for messages only. Shares the stream.
  SampleSource(std::shared_ptr<const TokenStream> stream, SegmentedSplit split, std::int64_t sequence_length,
               std::uint64_t seed, SampleOrder order, std::string name);

  const std::string& name() const noexcept { return name_; }
  std::int64_t sequence_length() const noexcept { return sequence_length_; }
  std::int64_t num_windows() const noexcept { return split_.num_windows(); }
  std::int64_t num_targets() const noexcept { return split_.num_targets(); }  // valid ones of one epoch
  const SegmentedSplit& split() const noexcept { return split_; }

  // The window that global sample number `sample` (>= 0) shows, or -1 beyond the end of a split read once.
  std::int64_t window_index(std::int64_t sample) const;

  // Targets of `sample` that are not ignored, 0 to T; by arithmetic, without reading a token.
  std::int64_t num_valid_targets(std::int64_t sample) const;

  // Writes tokens[T] and targets[T]. Behind the valid ones, tokens are 0 and targets -1. Thread-safe; allocates
  // nothing; not collective.
  void fill(std::int64_t sample, std::int32_t* tokens /* [T] */, std::int32_t* targets /* [T] */) const;

 private:
  std::shared_ptr<const TokenStream> stream_;
  SegmentedSplit split_;
  std::int64_t sequence_length_;
  PhiloxKey order_key_;
  SampleOrder order_;
  std::string name_;
};

}  // namespace potato
