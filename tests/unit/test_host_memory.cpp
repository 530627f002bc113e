#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "potato/device/host_memory.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys/fs/cgroup.
class Tree {
 public:
  Tree() : root_(fs::temp_directory_path() / ("potato_host_memory_" + std::to_string(getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~Tree() { fs::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
  }
  HostMemoryLimit limit() const { return host_memory_limit((root_ / "proc").string(), (root_ / "cgroup").string()); }

 private:
  fs::path root_;
};

}  // namespace

TEST_CASE("case-25: the cgroup's limit comes before the host's memory", "[host-memory]") {
  const Tree tree;
  CHECK(tree.limit().bytes() == 0);
  tree.write("proc/meminfo", "MemFree: 1 kB\nMemTotal:       2048 kB");
  CHECK(tree.limit().mem_total_bytes == 2048 * 1024);
  CHECK(tree.limit().cgroup_bytes == 0);
  CHECK(tree.limit().bytes() == 2048 * 1024);

  tree.write("proc/self/cgroup", "0::/jobs/job7/step");
  tree.write("cgroup/jobs/job7/step/memory.max", "max");
  CHECK(tree.limit().cgroup_bytes == 0);
  tree.write("cgroup/jobs/job7/memory.max", "1000000");  // the one around it is smaller
  CHECK(tree.limit().cgroup_bytes == 1000000);
  tree.write("cgroup/jobs/job7/step/memory.max", "1500000");
  CHECK(tree.limit().cgroup_bytes == 1000000);
  CHECK(tree.limit().bytes() == 1000000);
  tree.write("cgroup/jobs/job7/memory.max", "99999999999");
  CHECK(tree.limit().cgroup_bytes == 1500000);
  tree.write("cgroup/jobs/job7/step/memory.max", "9999999");
  CHECK(tree.limit().bytes() == 2048 * 1024);  // more than there is
}

TEST_CASE("version 1 cgroups", "[host-memory]") {
  const Tree tree;
  tree.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/slurm/uid_1\n0::/a");
  tree.write("cgroup/memory/slurm/uid_1/memory.limit_in_bytes", "9223372036854771712");
  CHECK(tree.limit().cgroup_bytes == 0);
  tree.write("cgroup/memory/slurm/memory.limit_in_bytes", "123456");
  CHECK(tree.limit().cgroup_bytes == 123456);
}

TEST_CASE("this host's memory is known", "[host-memory]") { CHECK(host_memory_limit().mem_total_bytes > (1 << 20)); }
