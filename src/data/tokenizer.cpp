#include "potato/data/tokenizer.hpp"

namespace potato {

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < 256) {
      text.push_back(static_cast<char>(static_cast<unsigned char>(token)));
    } else if (token != end_of_text) {
      text += "\xEF\xBF\xBD";
    }
  }
  return text;
}

}  // namespace potato
