// Everything that is written from the table of keys.
#include <algorithm>

#include "keys.hpp"
#include "potato/core/error.hpp"

namespace potato {

namespace {

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

std::string to_ini(const Config& config) {
  std::string ini;
  std::string section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) {
      ini += cat(section.empty() ? "" : "\n", "[", key.section, "]\n");
      section = key.section;
    }
    ini += cat(key.name, " = ", key.get(config), "\n");
  }
  return ini;
}

std::string help_text() {
  std::string text =
      "PotatoChat trains GPT-2 style language models on a data x tensor x pipeline grid of MPI ranks.\n\n"
      "  mpirun -np 8 potatochat inputs/config.ini [--section.key=value ...]\n"
      "  mpirun -np 8 potatochat verify run/checkpoints/step-00000200    whether checkpoints are as they were "
      "written\n\n"
      "  --print-config       show the resolved configuration and leave\n"
      "  --config-reference   write docs/configuration.md to the standard output\n"
      "  --version, --help\n\n"
      "Exit codes: 0 done; 2 a mistake in configuration, data or launch; 1 and others: a failure.\n"
      "Keys (default):\n";
  const Config defaults;
  std::string section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) text += cat("\n[", key.section, "]\n");
    section = key.section;
    text += cat("  ", padded(cat(key.name, " (", key.get(defaults), ")"), 36), " ", key.meaning, " [", key.valid,
                key.unit.empty() ? "" : "; " + key.unit, "]\n");
  }
  return text;
}

std::string reference_markdown() {
  std::string text =
      "# Configuration reference\n\n"
      "Written by `potatochat --config-reference`; do not edit. Keys stand under their `[section]` in an INI file, or "
      "on "
      "the\ncommand line as `--section.key=value`, which wins.\n";
  const Config defaults;
  std::string section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) {
      text += cat("\n## [", key.section,
                  "]\n\n| key | default | valid | unit | meaning |\n| --- | --- | --- | --- | --- |\n");
    }
    section = key.section;
    std::string valid = key.valid;
    for (std::size_t at = 0; (at = valid.find('|', at)) != std::string::npos; at += 2) valid.replace(at, 1, "\\|");
    const std::string value = key.get(defaults);
    text += cat("| `", key.name, "` | ", value.empty() ? "" : "`" + value + "`", " | ", valid, " | ", key.unit, " | ",
                key.meaning, " |\n");
  }
  return text;
}

}  // namespace potato
