// The byte-level tokenizer: token ids 0 to 255 are bytes, 256 marks the end of a text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace potato {

class ByteTokenizer {
 public:
  static constexpr std::int64_t vocab_size = 257;
  static constexpr std::int32_t end_of_text = 256;

  // One token a byte; no end-of-text is added.
  static std::vector<std::int32_t> encode(std::string_view text);

  // The bytes of `tokens`. End-of-text decodes to nothing; an id that is no byte (negative or above 256, which a model
  // with a larger vocabulary can produce) decodes to U+FFFD, the replacement character. Never throws for an id.
  static std::string decode(std::span<const std::int32_t> tokens);

  // Bytes of text that a token stands for, for bits per byte: 1 for a byte, 0 otherwise.
  static constexpr std::int64_t num_bytes(std::int32_t token) { return token >= 0 && token < 256 ? 1 : 0; }
};

}  // namespace potato
