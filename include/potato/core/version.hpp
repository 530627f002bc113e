// What this build is.
#pragma once

#include <string_view>

namespace potato {

std::string_view version();     // e.g. "0.1.0"
std::string_view git_commit();  // of the build, "-dirty" where the tree had changes, or "unknown"

}  // namespace potato
