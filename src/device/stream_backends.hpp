// What a stream is on each kind of device that computes.
#pragma once

#include <memory>

#include "potato/device/stream.hpp"

namespace potato {

std::unique_ptr<StreamBackend> make_cpu_stream(StreamOptions options);

namespace cuda {

std::unique_ptr<StreamBackend> make_stream(int ordinal, StreamOptions options);

}  // namespace cuda

}  // namespace potato
