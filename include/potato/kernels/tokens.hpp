// How the rows of an activation map to logical tokens, and what dropout needs to know (docs/design.md, I2).
#pragma once

#include <cstdint>

#include "potato/core/philox.hpp"

namespace potato {

// Row r of a local activation is row first_row + r of the flattened micro-batch [B · T]; its sample is
// first_sample + row / T, its position row % T. Under sequence parallelism a rank holds a contiguous range of rows.
struct TokenRows {
  std::uint64_t first_sample = 0;    // global sample number of row 0 of the micro-batch
  std::int64_t sequence_length = 0;  // T
  std::int64_t first_row = 0;        // of this shard within the micro-batch
};

// Inverted dropout: an element is kept, and scaled by 1 / (1 − p), where its 32-bit integer is >= the threshold.
// The mask is a function of (key, sample, position, channel); nothing is saved, backward computes it again.
struct Dropout {
  double p = 0;  // 0: off, the mask is never computed
  PhiloxKey key;
};

}  // namespace potato
