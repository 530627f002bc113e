// What a file without a manifest is.
#pragma once

#include <string>

namespace potato {

// One sentence about the file: "is missing", "is no HDF5 file", "is an HDF5 file of format 2 …". HDF5 opens it in a
// child process, since damaged files crash it; the child has a time limit. Never throws.
std::string probe_file(const std::string& path);

}  // namespace potato
