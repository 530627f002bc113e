// The end of a job that failed on one rank (docs/design.md, I8).
#pragma once

#include <string>

namespace potato {

// Prints host, world rank and message, then MPI_Abort, which ends all ranks; if that hangs, the process leaves by
// itself after `timeout_s`. Nothing collective is attempted. May be called from any thread.
[[noreturn]] void abort_job(const std::string& message, double timeout_s);

}  // namespace potato
