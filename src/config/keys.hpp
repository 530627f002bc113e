// The one table of configuration keys.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "potato/config/config.hpp"

namespace potato {

struct ConfigKey {
  std::string section;
  std::string name;
  std::string unit;   // "" where there is none
  std::string valid;  // what is accepted, e.g. ">= 1" or "none | selective | full"
  std::string meaning;
  std::function<std::string(const Config&)> get;
  // Sets the value from its text; returns false where the text is not valid.
  std::function<bool(Config&, const std::string&)> set;

  std::string full_name() const { return section + "." + name; }
};

const std::vector<ConfigKey>& config_keys();

// nullptr where there is no such key.
const ConfigKey* find_key(std::string_view full_name);

// What to do about a key that does not exist: where it is here, or the nearest key.
std::string advice_for_unknown(std::string_view full_name);

}  // namespace potato
