// Monotonic time.
#pragma once

#include <chrono>

namespace potato {

// Seconds since an arbitrary fixed point; monotonic.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace potato
