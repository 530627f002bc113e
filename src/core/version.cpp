#include "potato/core/version.hpp"

namespace potato {

std::string_view version() { return POTATO_VERSION; }
std::string_view git_commit() { return POTATO_GIT_COMMIT; }

}  // namespace potato
