#include "potato/modes/verify.hpp"

#include <cmath>
#include <cstdio>

#include "potato/checkpoint/folder.hpp"
#include "potato/checkpoint/verify.hpp"
#include "potato/core/clock.hpp"

namespace potato {

namespace {

void print(const VerifyReport& report, double seconds) {
  const auto gigabytes = static_cast<double>(report.num_bytes) * 1e-9;
  if (report.problems.empty()) {
    std::printf("good     %s: step %lld, %d file(s), %lld tensors in %lld pieces, %.3f GB in %.2f s (%.2f GB/s)\n",
                report.folder.c_str(), static_cast<long long>(report.info.step), report.num_files,
                static_cast<long long>(report.num_tensors), static_cast<long long>(report.num_pieces), gigabytes,
                seconds, gigabytes / seconds);
    std::printf("         saved on %s in %s by %s\n", report.info.grid.c_str(), report.info.dtype.c_str(),
                report.info.versions.c_str());
  } else {
    std::printf("DAMAGED  %s\n", report.folder.c_str());
    for (const std::string& problem : report.problems) std::printf("         %s\n", problem.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int verify_mode(const std::string& path, const HostGroup& world) {
  const auto folders = find_checkpoints(path, path, world);
  int num_damaged = 0;
  for (const std::string& folder : folders) {
    const double start_s = now_s();
    const VerifyReport report = verify_checkpoint(folder, world);
    if (world.rank() == 0) print(report, now_s() - start_s);
    if (!report.problems.empty()) ++num_damaged;
  }
  if (world.rank() == 0 && folders.size() > 1) {
    std::printf("%zu checkpoints, %d damaged\n", folders.size(), num_damaged);
  }
  return num_damaged > 0 ? 1 : 0;
}

}  // namespace potato
