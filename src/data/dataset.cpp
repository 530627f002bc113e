#include "potato/data/dataset.hpp"

#include <limits>
#include <utility>

#include "potato/core/error.hpp"
#include "potato/data/token_cache.hpp"
#include "potato/data/tokenizer.hpp"

namespace potato {

namespace {

struct Sources {
  std::vector<std::string> files;
  SourceKind kind = SourceKind::text;
  std::int64_t vocab_size = 0;
};

// Everything that can be said without reading a file's content; all problems at once.
Sources check_options(const DatasetOptions& options) {
  std::vector<std::string> problems;
  Sources sources;
  const auto collect = [&](auto&& body) {
    try {
      body();
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  };
  if (options.sequence_length < 1) {
    problems.push_back(cat("train.sequence_length = ", options.sequence_length, " must be at least 1."));
  }
  collect([&] { make_split(std::numeric_limits<std::int64_t>::max() / 2, options.validation_fraction, 1); });
  if (options.vocab_size < 0 || options.vocab_size > std::numeric_limits<std::int32_t>::max()) {
    problems.push_back(cat("model.vocab_size = ", options.vocab_size, " is out of range; valid are 0 to ",
                           std::numeric_limits<std::int32_t>::max(), "."));
  }
  collect([&] {
    sources.files = expand_paths(options.path);
    sources.kind = source_kind(sources.files);
    sources.vocab_size = options.vocab_size;
    if (sources.kind == SourceKind::tokens) {
      if (options.vocab_size == 0) {
        throw ConfigError(
            "model.vocab_size = 0 takes the tokenizer's vocabulary, but data.path names token files, which have "
            "none; give the number of ids (50257 for GPT-2).");
      }
      return;
    }
    if (options.tokenizer != "bytes") {
      throw ConfigError(cat("data.tokenizer = '", options.tokenizer, "' is unknown; valid is 'bytes'."));
    }
    if (options.vocab_size == 0) sources.vocab_size = ByteTokenizer::vocab_size;
    if (sources.vocab_size < ByteTokenizer::vocab_size) {
      throw ConfigError(cat("model.vocab_size = ", options.vocab_size,
                            " is too small for the byte tokenizer, which has ", ByteTokenizer::vocab_size,
                            " ids; valid are 0 (the tokenizer's) and ", ByteTokenizer::vocab_size, " or more."));
    }
    if (options.cache_dir.empty()) {
      throw ConfigError("data.cache_dir is empty; text files need a folder for their tokens.");
    }
  });
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return sources;
}

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

}  // namespace

void Dataset::prepare(const DatasetOptions& options) {
  const Sources sources = check_options(options);
  if (sources.kind == SourceKind::text) prepare_token_cache(sources.files, options.cache_dir, sources.vocab_size);
}

Dataset Dataset::open(const DatasetOptions& options) {
  Sources sources = check_options(options);
  std::vector<std::string> token_files = sources.files;
  if (sources.kind == SourceKind::text) {
    token_files = {token_cache_path(sources.files, options.cache_dir, sources.vocab_size)};
    if (!token_cache_is_valid(token_files[0], sources.files, sources.vocab_size)) {
      throw IoError(cat("the token cache ", token_files[0],
                        " is missing or incomplete; either data.path changed since it was prepared, or this host does "
                        "not see the data.cache_dir of the rank that prepared it"));
    }
  }
  TokenStream stream = TokenStream::open(token_files);
  if (options.validate_ids) stream.check_ids(sources.vocab_size);
  DatasetOptions resolved = options;
  resolved.vocab_size = sources.vocab_size;
  return Dataset(resolved, std::move(sources.files), sources.kind, std::move(stream));
}

Dataset::Dataset(const DatasetOptions& options, std::vector<std::string> files, SourceKind kind, TokenStream stream)
    : files_(std::move(files)),
      kind_(kind),
      vocab_size_(options.vocab_size),
      stream_(std::make_shared<const TokenStream>(std::move(stream))),
      split_(make_split(stream_->num_tokens(), options.validation_fraction, options.sequence_length)),
      train_(stream_, split_.train, options.sequence_length, options.seed, SampleOrder::permuted_epochs, "train") {
  if (split_.validation) {
    validation_.emplace(stream_, *split_.validation, options.sequence_length, options.seed, SampleOrder::once_in_order,
                        "validation");
  }
  if (kind_ == SourceKind::text) {
    const TokenCacheHeader& header = stream_->files()[0].cache_header();
    bytes_per_token_ = static_cast<double>(header.num_text_bytes) / static_cast<double>(header.num_tokens);
  }
}

std::string Dataset::description() const {
  const TokenFile& first = stream_->files()[0];
  std::string text = cat(files_.size(), files_.size() == 1 ? " file (" : " files (", files_.front(),
                         files_.size() == 1 ? "" : ", ..", "): ", with_commas(num_tokens()), " tokens of ",
                         first.width_bytes(), " bytes, vocabulary ", with_commas(vocab_size_));
  text += kind_ == SourceKind::text ? cat(", byte tokenizer, cached in ", first.path())
                                    : cat(", format ", token_format_name(first.format()));
  const auto line = [&](const SampleSource& source) {
    text += cat("\n", source.name(), ": ", with_commas(source.num_windows()), " windows of ", source.sequence_length(),
                " tokens, ", with_commas(source.num_targets()), " targets");
  };
  line(train_);
  if (validation_) {
    line(*validation_);
    text += cat(" (one of every ", split_.validation_every_blocks, " blocks of ", with_commas(split_.block_tokens),
                " tokens)");
  } else {
    text += "\nvalidation: none";
  }
  return text;
}

}  // namespace potato
