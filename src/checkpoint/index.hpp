// index.h5: every logical tensor as one virtual dataset over the shard files, for h5py and HDF5's tools.
#pragma once

#include <string>

#include "manifest.hpp"

namespace potato {

// Writes it into the checkpoint's folder with HDF5's serial driver and syncs it; returns its bytes and hash. One rank.
FileBlock write_index(const std::string& folder, const Manifest& manifest);

}  // namespace potato
