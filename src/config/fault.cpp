// run.debug_fault.
#include <array>
#include <sstream>
#include <utility>

#include "potato/config/config.hpp"
#include "potato/core/error.hpp"

namespace potato {

Fault parse_fault(const std::string& text) {
  constexpr std::array<std::pair<const char*, Fault::Kind>, 6> kinds = {
      {{"skip_collective", Fault::Kind::skip_collective},
       {"data_sleep", Fault::Kind::data_sleep},
       {"stop", Fault::Kind::stop},
       {"slow", Fault::Kind::slow},
       {"nan", Fault::Kind::nan},
       {"kernel_sleep", Fault::Kind::kernel_sleep}}};
  Fault fault;
  if (text == "none") return fault;
  std::istringstream in(text);
  char first = 0;
  char second = 0;
  std::string kind;
  if (in >> fault.rank >> first >> fault.step >> second >> kind && first == ':' && second == ':') {
    for (const auto& [name, value] : kinds) {
      if (kind == name) fault.kind = value;
    }
  }
  if (fault.kind == Fault::Kind::none) {
    throw ConfigError(cat("run.debug_fault = ", text, " is not valid: none or RANK:STEP:KIND is needed, KIND being ",
                          "skip_collective, data_sleep, kernel_sleep, stop, slow or nan"));
  }
  return fault;
}

}  // namespace potato
