// HDF5 handles and checks.
#pragma once

#include <hdf5.h>

#include <source_location>
#include <string>
#include <utility>

#include "potato/core/dtype.hpp"
#include "potato/core/error.hpp"

namespace potato {

// An HDF5 call failed. Holds HDF5's own error stack.
class H5Error : public Error {
 public:
  H5Error(const char* expression, std::source_location place);
};

// Turns HDF5's own printing of errors off; they come through H5Error.
void silence_h5();

// In memory: fp32 or fp64.
hid_t memory_type(DType dtype);

// Passes a result >= 0 on, else throws.
template <typename Result>
Result check_h5(Result result, const char* expression, std::source_location place) {
  if (result < 0) throw H5Error(expression, place);
  return result;
}

// A handle that is closed by `Close` when it ends; move-only.
template <herr_t (*Close)(hid_t)>
class H5Handle {
 public:
  H5Handle() = default;
  explicit H5Handle(hid_t id) : id_(id) {}
  ~H5Handle() { reset(); }
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
    }
    return *this;
  }
  hid_t get() const noexcept { return id_; }
  // Gives the handle up, for a close that is checked.
  hid_t release() noexcept { return std::exchange(id_, H5I_INVALID_HID); }

 private:
  void reset() noexcept {
    if (id_ >= 0) Close(id_);
    id_ = H5I_INVALID_HID;
  }

  hid_t id_ = H5I_INVALID_HID;
};

using H5File = H5Handle<H5Fclose>;
using H5Group = H5Handle<H5Gclose>;
using H5Dataset = H5Handle<H5Dclose>;
using H5Space = H5Handle<H5Sclose>;
using H5Type = H5Handle<H5Tclose>;
using H5Attribute = H5Handle<H5Aclose>;
using H5Properties = H5Handle<H5Pclose>;

}  // namespace potato

#define PC_H5(call) ::potato::check_h5((call), #call, std::source_location::current())
