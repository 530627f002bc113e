#include "h5.hpp"

#include "potato/checkpoint/checkpoint.hpp"

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

hid_t memory_type(DType dtype) {
  PC_CHECK(dtype == DType::f32 || dtype == DType::f64, dtype_name(dtype));
  return dtype == DType::f32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE;
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return cat("HDF5 ", major, ".", minor, ".", release);
}

void silence_h5() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

}  // namespace potato
