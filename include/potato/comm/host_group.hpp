// Small blocking collectives between the main threads of a group of ranks: control, not data.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace potato {

// Owns a duplicate of a communicator. All members are collective over the group.
class HostGroup {
 public:
  explicit HostGroup(MPI_Comm parent);
  ~HostGroup();
  HostGroup(HostGroup&& other) noexcept;
  HostGroup& operator=(HostGroup&&) = delete;

  MPI_Comm comm() const noexcept { return comm_; }
  int rank() const noexcept { return rank_; }
  int num_ranks() const noexcept { return num_ranks_; }

  void barrier() const;
  double sum(double value) const;
  double max(double value) const;
  double min(double value) const;
  std::int64_t max(std::int64_t value) const;
  void broadcast(void* data, std::int64_t num_bytes, int root) const;
  std::string broadcast(const std::string& text, int root) const;
  // Every rank's text, on all ranks.
  std::vector<std::string> all_gather(const std::string& text) const;

  // Every rank's text, on `root`; nothing elsewhere.
  std::vector<std::string> gather(const std::string& text, int root) const;

  // Throws the same ConfigError on all ranks if any rank brings problems; each distinct problem once, in rank order.
  void agree(const std::vector<std::string>& problems) const;
  // Runs `work` (which must not be collective) and agrees on what it throws: ConfigError and IoError of any rank become
  // one ConfigError on all ranks.
  void run_agreed(const std::function<void()>& work) const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int num_ranks_ = 1;
};

}  // namespace potato
