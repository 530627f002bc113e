#include "potato/layers/parallel.hpp"

namespace potato {

Rows gather_rows(const LayerContext& ctx, ConstTensorView shard) {
  if (!ctx.sequence_parallel || ctx.tensor.num_ranks() == 1) return {shard, {}};
  Tensor full = ctx.make({shard.dim(0) * ctx.tensor.num_ranks(), shard.dim(1)});
  ctx.tensor.all_gather(shard, full, ctx.stream);
  const ConstTensorView view = full;
  return {view, std::move(full)};
}

Tensor reduce_rows(const LayerContext& ctx, Tensor partial) {
  if (!ctx.sequence_parallel || ctx.tensor.num_ranks() == 1) {
    ctx.tensor.all_reduce(partial, ReduceOp::sum, ctx.stream);
    return partial;
  }
  const Shape& full = partial.view().shape;
  Tensor shard = ctx.make({full[0] / ctx.tensor.num_ranks(), full[1]});
  ctx.tensor.reduce_scatter(partial, shard, ctx.stream);
  return shard;
}

}  // namespace potato
