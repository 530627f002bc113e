// The two places where a tensor-parallel layer talks to its group (Shoeybi et al., arXiv 1909.08053; with sequence
// parallelism Korthikanti et al., arXiv 2205.05198). Both are collective on the tensor axis.
//
// Here a sequence shard is a contiguous range of rows of the flattened micro-batch: everything between two parallel
// regions is per token, so any range will do, and both collectives move contiguous memory.
#pragma once

#include "potato/layers/context.hpp"

namespace potato {

// Rows that are either somebody else's or held here.
struct Rows {
  ConstTensorView view;
  Tensor held;
};

// All M rows from the shards [M_local, N] under sequence parallelism; else `shard` itself, without a copy.
Rows gather_rows(const LayerContext& ctx, ConstTensorView shard);

// The sum over tensor ranks of `partial` [M, N]: this rank's shard of it [M_local, N] under sequence parallelism, else
// all rows (in place).
Tensor reduce_rows(const LayerContext& ctx, Tensor partial);

}  // namespace potato
