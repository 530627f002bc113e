#include "potato/data/sample_source.hpp"

#include <algorithm>
#include <utility>

#include "potato/core/error.hpp"

namespace potato {

SampleSource::SampleSource(std::shared_ptr<const TokenStream> stream, SegmentedSplit split,
                           std::int64_t sequence_length, std::uint64_t seed, SampleOrder order, std::string name)
    : stream_(std::move(stream)),
      split_(split),
      sequence_length_(sequence_length),
      order_key_(philox_key(seed, "data.order")),
      order_(order),
      name_(std::move(name)) {
  PC_CHECK(stream_ != nullptr && split_.num_windows() > 0, "split ", name_, " has no window");
}

std::int64_t SampleSource::window_index(std::int64_t sample) const {
  PC_CHECK(sample >= 0, "sample ", sample, " of ", name_);
  if (order_ == SampleOrder::once_in_order) return sample < num_windows() ? sample : -1;
  const auto windows = static_cast<std::uint64_t>(num_windows()), number = static_cast<std::uint64_t>(sample);
  return static_cast<std::int64_t>(permuted_index(order_key_, number / windows, number % windows, windows));
}

std::int64_t SampleSource::num_valid_targets(std::int64_t sample) const {
  const std::int64_t index = window_index(sample);
  return index < 0 ? 0 : split_.window(index).num_valid;
}

void SampleSource::fill(std::int64_t sample, std::int32_t* tokens, std::int32_t* targets) const {
  const std::int64_t index = window_index(sample);
  const TokenWindow window = index < 0 ? TokenWindow{} : split_.window(index);
  if (window.num_valid > 0) {
    stream_->read(window.begin, window.num_valid, tokens);
    std::copy(tokens + 1, tokens + window.num_valid, targets);
    stream_->read(window.begin + window.num_valid, 1, targets + window.num_valid - 1);
  }
  std::fill(tokens + window.num_valid, tokens + sequence_length_, padding_token);
  std::fill(targets + window.num_valid, targets + sequence_length_, ignored_target);
}

}  // namespace potato
