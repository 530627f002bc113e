#include "potato/model/stage.hpp"

#include <algorithm>

#include "potato/pipeline/partition.hpp"

namespace potato {

std::vector<std::int64_t> layer_boundaries(const Config& config, std::int64_t num_virtual_stages) {
  const ModelConfig& model = config.model;
  // Multiplications per token of the forward pass; the embedding's look-up is cheap beside its memory traffic.
  const auto hidden = static_cast<double>(model.hidden_size);
  const double layer = 4 * hidden * hidden + 2 * hidden * static_cast<double>(model.ffn_hidden_size) +
                       hidden * static_cast<double>(config.train.sequence_length);
  const double head = hidden * static_cast<double>(model.vocab_size);
  const std::vector<double> costs(static_cast<std::size_t>(model.num_layers), layer);
  return partition_layers(costs, 2 * hidden, head, static_cast<int>(num_virtual_stages));
}

std::int64_t num_model_parameters(const ModelConfig& model) {
  const std::int64_t c = model.hidden_size;
  const std::int64_t f = model.ffn_hidden_size;
  const std::int64_t layer = 4 * c * c + 4 * c + 2 * c * f + f + c + 4 * c;
  return model.num_layers * layer + model.vocab_size * c * (model.tie_embeddings ? 1 : 2) +
         model.max_position_embeddings * c + 2 * c;
}

Stage::Stage(const LayerContext& ctx, const Config& config, const GridCommunicators& grid, std::int64_t max_alive)
    : ctx_(ctx),
      hidden_size_(config.model.hidden_size),
      vocabulary_(vocabulary_shard(config.model.vocab_size, grid.at.tensor, static_cast<int>(grid.shape.tensor))) {
  const std::int64_t num_stages = grid.shape.pipeline;
  const std::int64_t num_chunks = config.parallel.virtual_chunks;
  const std::vector<std::int64_t> boundaries = layer_boundaries(config, num_stages * num_chunks);
  const bool tied = config.model.tie_embeddings;
  // A chunk's layers finish backward one after another and form a group, with the embedding in the first. The head's
  // backward runs in its forward, and the tied weight is used at both ends: each is a group of its own.
  ParameterRegistry& registry = ctx_.registry;
  const int head_group = static_cast<int>(num_chunks);
  Parameter* tokens = nullptr;
  if (tied && (grid.is_first_stage() || grid.is_last_stage())) {
    const int unit = registry.begin_unit(head_group + 1);
    tokens = &declare_vocabulary_weight(ctx_, "tok_embed.weight", config.model.vocab_size, hidden_size_, Sharing::tied,
                                        grid.is_first_stage());
    if (grid.is_first_stage() && grid.is_last_stage()) registry.add_use(*tokens);
    if (grid.is_first_stage()) embedding_units_.push_back(unit);
    if (grid.is_last_stage()) head_units_.push_back(unit);
  }
  if (grid.is_first_stage()) {
    embedding_units_.push_back(registry.begin_unit(0));
    Parameter& weight = tied ? *tokens
                             : declare_vocabulary_weight(ctx_, "tok_embed.weight", config.model.vocab_size,
                                                         hidden_size_, Sharing::sharded, true);
    embedding_.emplace(ctx_, config.model, weight);
  }
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const auto v = static_cast<std::size_t>(chunk * num_stages + grid.at.pipeline);
    Chunk& layers = chunks_.emplace_back();
    layers.first_layer = boundaries[v];
    for (std::int64_t i = boundaries[v]; i < boundaries[v + 1]; ++i) {
      layers.units.push_back(registry.begin_unit(static_cast<int>(chunk)));
      layers.blocks.emplace_back(ctx_, cat("layers.", i), config.model);
    }
  }
  if (grid.is_last_stage()) {
    head_units_.push_back(registry.begin_unit(head_group));
    Parameter& weight = tied ? *tokens
                             : declare_vocabulary_weight(ctx_, "head.weight", config.model.vocab_size, hidden_size_,
                                                         Sharing::sharded, true);
    head_.emplace(ctx_, config.model, weight, config.train.loss_chunk_tokens);
  }
  saved_.resize(static_cast<std::size_t>(max_alive));
  std::size_t most_blocks = 0;
  for (const Chunk& chunk : chunks_) most_blocks = std::max(most_blocks, chunk.blocks.size());
  for (Saved& saved : saved_) saved.blocks.resize(most_blocks);
}

Stage::Saved& Stage::claim(int chunk, int micro_batch) {
  for (Saved& saved : saved_) {
    if (saved.chunk >= 0) continue;
    saved.chunk = chunk;
    saved.micro_batch = micro_batch;
    return saved;
  }
  throw Error(cat("more than ", saved_.size(), " micro-batches alive"));
}

Stage::Saved& Stage::find(int chunk, int micro_batch) {
  for (Saved& saved : saved_) {
    if (saved.chunk == chunk && saved.micro_batch == micro_batch) return saved;
  }
  throw Error(cat("no activations of micro-batch ", micro_batch, ", chunk ", chunk));
}

Tensor Stage::make_boundary(int micro_batch) {
  return ctx_.make({local_rows(ctx_, micro_batches_[static_cast<std::size_t>(micro_batch)]), hidden_size_});
}

Tensor Stage::forward(int chunk, int micro_batch, Tensor input) {
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  Saved& saved = claim(chunk, micro_batch);
  timers_.forward.start(ctx_.stream);
  note_pass(ctx_, FlightPass::forward, micro_batch, -1);
  Tensor x = is_first(chunk) ? embed(batch) : std::move(input);
  const Chunk& layers = chunks_[static_cast<std::size_t>(chunk)];
  // A block may do the first norm of the next; not where that block's weights are not there yet.
  const bool fuses_next = !ctx_.registry.shards_weights();
  for (std::size_t i = 0; i < layers.blocks.size(); ++i) {
    const bool is_end = i + 1 == layers.blocks.size();
    const NextNorm next = is_end || !fuses_next
                              ? NextNorm{}
                              : NextNorm{&layers.blocks[i + 1].first_norm(), &saved.blocks[i + 1].attention.norm};
    note_pass(ctx_, FlightPass::forward, micro_batch, layers.first_layer + static_cast<std::int64_t>(i));
    enter({&layers.units[i], next.norm != nullptr ? 2UL : 1UL}, false);
    x = layers.blocks[i].forward(ctx_, batch, std::move(x), saved.blocks[i], next);
    leave({&layers.units[i], 1});
  }
  if (is_last(chunk)) {
    note_pass(ctx_, FlightPass::forward, micro_batch, -1);
    enter(head_units_, batch.training);
    if (batch.logits_position >= 0) {
      logits_ = head_->logits_at(ctx_, batch, x, batch.logits_position);
    } else {
      saved.head_gradient = head_->forward(ctx_, batch, std::move(x));
    }
    leave(head_units_);
    x = Tensor();
  }
  if (!batch.training) saved.chunk = -1;
  timers_.forward.stop(ctx_.stream);
  return x;
}

void Stage::enter(std::span<const int> units, bool backward) {
  for (const int unit : units) ctx_.registry.enter(unit, backward);
}

void Stage::leave(std::span<const int> units) {
  for (const int unit : units) ctx_.registry.leave(unit);
}

Tensor Stage::embed(const MicroBatch& batch) {
  enter(embedding_units_, false);
  Tensor x = embedding_->forward(ctx_, batch);
  leave(embedding_units_);
  return x;
}

Tensor Stage::backward(int chunk, int micro_batch, Tensor output_gradient) {
  const MicroBatch& batch = micro_batches_[static_cast<std::size_t>(micro_batch)];
  Saved& saved = find(chunk, micro_batch);
  timers_.backward.start(ctx_.stream);
  Tensor gradient = is_last(chunk) ? std::move(saved.head_gradient) : std::move(output_gradient);
  const Chunk& layers = chunks_[static_cast<std::size_t>(chunk)];
  for (std::size_t i = layers.blocks.size(); i-- > 0;) {
    note_pass(ctx_, FlightPass::backward, micro_batch, layers.first_layer + static_cast<std::int64_t>(i));
    enter({&layers.units[i], 1}, true);
    gradient = layers.blocks[i].backward(ctx_, batch, std::move(gradient), saved.blocks[i]);
    leave({&layers.units[i], 1});
  }
  if (is_first(chunk)) {
    note_pass(ctx_, FlightPass::backward, micro_batch, -1);
    enter(embedding_units_, true);
    embedding_->backward(ctx_, batch, std::move(gradient));
    leave(embedding_units_);
    gradient = Tensor();
  }
  saved.chunk = -1;
  timers_.backward.stop(ctx_.stream);
  return gradient;
}

void Stage::append_uses(const Pass& pass, std::vector<int>& uses) const {
  const std::vector<int>& blocks = chunks_[static_cast<std::size_t>(pass.chunk)].units;
  const auto append = [&uses](const std::vector<int>& units) { uses.insert(uses.end(), units.begin(), units.end()); };
  if (pass.kind == PassKind::forward) {
    if (is_first(pass.chunk)) append(embedding_units_);
    append(blocks);
    if (is_last(pass.chunk)) append(head_units_);
  } else {
    uses.insert(uses.end(), blocks.rbegin(), blocks.rend());
    if (is_first(pass.chunk)) append(embedding_units_);
  }
}

std::string Stage::describe() const {
  std::string text = embedding_ ? "embedding, " : "";
  for (const Chunk& chunk : chunks_) {
    const auto last = chunk.first_layer + static_cast<std::int64_t>(chunk.blocks.size()) - 1;
    text += cat("layers ", chunk.first_layer, "-", last, ", ");
  }
  if (head_) text += "head, ";
  text.resize(text.size() - 2);
  return text;
}

}  // namespace potato
