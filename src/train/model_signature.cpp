#include "model_signature.hpp"

#include <nlohmann/json.hpp>

#include "potato/core/error.hpp"

namespace potato {

std::string model_signature(const ModelConfig& model) {
  const nlohmann::ordered_json json = {{"family", model.family},
                                       {"num_layers", model.num_layers},
                                       {"hidden_size", model.hidden_size},
                                       {"num_heads", model.num_heads},
                                       {"ffn_hidden_size", model.ffn_hidden_size},
                                       {"max_position_embeddings", model.max_position_embeddings},
                                       {"vocab_size", model.vocab_size},
                                       {"tie_embeddings", model.tie_embeddings}};
  return json.dump();
}

std::vector<std::string> signature_differences(const std::string& stored, const std::string& wanted,
                                               const std::string& path) {
  const auto old_model = nlohmann::json::parse(stored, nullptr, false);
  const auto new_model = nlohmann::ordered_json::parse(wanted);
  std::vector<std::string> problems;
  for (const auto& [key, value] : new_model.items()) {
    const std::string old_text = old_model.is_object() && old_model.contains(key) ? old_model[key].dump() : "missing";
    if (old_text == value.dump()) continue;
    problems.push_back(cat("model.", key, " = ", value.dump(), ", but checkpoint ", path, " has ", old_text,
                           "; resume with the checkpoint's model, or start a new run with checkpoint.resume = none"));
  }
  return problems;
}

}  // namespace potato
