// The data of a run: from `data.path` to samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "potato/data/sample_source.hpp"
#include "potato/data/sources.hpp"
#include "potato/data/split.hpp"
#include "potato/data/token_file.hpp"

namespace potato {

struct DatasetOptions {
  std::string path;                  // comma-separated files and globs
  std::string tokenizer = "bytes";   // of text files; token files need none
  std::string cache_dir;             // for the tokens of text files
  double validation_fraction = 0.0;  // 0: no validation split
  std::int64_t sequence_length = 0;
  std::int64_t vocab_size = 0;  // 0: the tokenizer's
  std::uint64_t seed = 0;
  bool validate_ids = false;  // read every token and check it against the vocabulary; one rank does it
};

class Dataset {
 public:
  // Checks the options and writes the token cache of text files. Called by one rank (of each file system) before any
  // rank opens; not collective. Throws ConfigError with all mistakes found, or IoError.
  static void prepare(const DatasetOptions& options);

  // Maps the tokens and makes the splits; reads no token unless validate_ids. For text, prepare must have been called.
  // Not collective. Throws ConfigError with all mistakes found, or IoError.
  static Dataset open(const DatasetOptions& options);

  const SampleSource& train() const noexcept { return train_; }
  const SampleSource* validation() const noexcept { return validation_ ? &*validation_ : nullptr; }  // null: none

  std::int64_t vocab_size() const noexcept { return vocab_size_; }
  std::int64_t num_tokens() const noexcept { return stream_->num_tokens(); }
  SourceKind kind() const noexcept { return kind_; }

  // Bytes of text over number of tokens, for bits per byte; unknown for token files. With byte tokens each target
  // counts ByteTokenizer::num_bytes(target), so this is 1 but for the end-of-text tokens between files.
  std::optional<double> bytes_per_token() const noexcept { return bytes_per_token_; }

  // A few lines for the start of a run: files, tokens, windows of each split. Ends without a line break.
  std::string description() const;

 private:
  Dataset(const DatasetOptions& options, std::vector<std::string> files, SourceKind kind, TokenStream stream);

  std::vector<std::string> files_;
  SourceKind kind_;
  std::int64_t vocab_size_;
  std::shared_ptr<const TokenStream> stream_;
  StreamSplit split_;
  SampleSource train_;
  std::optional<SampleSource> validation_;
  std::optional<double> bytes_per_token_;
};

}  // namespace potato
