#include "h5.hpp"

namespace potato {

namespace {

herr_t add_line(unsigned, const H5E_error2_t* error, void* text) {
  auto& lines = *static_cast<std::string*>(text);
  if (error->desc != nullptr && lines.size() < 400) lines += cat(lines.empty() ? "" : "; ", error->desc);
  return 0;
}

std::string stack_text() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, add_line, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "no reason given" : text;
}

}  // namespace

H5Error::H5Error(const char* expression, std::source_location place)
    : Error(cat(expression, ": ", stack_text()), place) {}

void silence_h5() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

}  // namespace potato
