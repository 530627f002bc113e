#include "potato/comm/host_group.hpp"

#include <algorithm>
#include <utility>

#include "potato/comm/mpi_check.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/narrow.hpp"

namespace potato {

HostGroup::HostGroup(MPI_Comm parent) {
  const LibraryScope library;
  PC_MPI(MPI_Comm_dup(parent, &comm_));
  PC_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  PC_MPI(MPI_Comm_rank(comm_, &rank_));
  PC_MPI(MPI_Comm_size(comm_, &num_ranks_));
}

HostGroup::~HostGroup() {
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

HostGroup::HostGroup(HostGroup&& other) noexcept
    : comm_(std::exchange(other.comm_, MPI_COMM_NULL)), rank_(other.rank_), num_ranks_(other.num_ranks_) {}

void HostGroup::barrier() const {
  const LibraryScope library;
  PC_MPI(MPI_Barrier(comm_));
}

namespace {

template <typename T>
T reduced(T value, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  const LibraryScope library;
  T result{};
  PC_MPI(MPI_Allreduce(&value, &result, 1, type, op, comm));
  return result;
}

}  // namespace

double HostGroup::sum(double value) const { return reduced(value, MPI_DOUBLE, MPI_SUM, comm_); }
double HostGroup::max(double value) const { return reduced(value, MPI_DOUBLE, MPI_MAX, comm_); }
double HostGroup::min(double value) const { return reduced(value, MPI_DOUBLE, MPI_MIN, comm_); }
std::int64_t HostGroup::max(std::int64_t value) const { return reduced(value, MPI_INT64_T, MPI_MAX, comm_); }

void HostGroup::broadcast(void* data, std::int64_t num_bytes, int root) const {
  const LibraryScope library;
  PC_MPI(MPI_Bcast(data, narrow<int>(num_bytes), MPI_BYTE, root, comm_));
}

std::string HostGroup::broadcast(const std::string& text, int root) const {
  auto num_bytes = static_cast<std::int64_t>(text.size());
  broadcast(&num_bytes, sizeof(num_bytes), root);
  std::string result = text;
  result.resize(static_cast<std::size_t>(num_bytes));
  broadcast(result.data(), num_bytes, root);
  return result;
}

namespace {

// Texts of all ranks, one behind the other.
struct Parts {
  explicit Parts(std::vector<int> all_lengths) : lengths(std::move(all_lengths)), offsets(lengths.size()) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      offsets[i] = narrow<int>(total);
      total += lengths[i];
    }
    all.resize(static_cast<std::size_t>(total));
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> result;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      result.push_back(all.substr(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(lengths[i])));
    }
    return result;
  }

  std::vector<int> lengths;
  std::vector<int> offsets;
  std::string all;
};

std::vector<int> gather_lengths(const std::string& text, MPI_Comm comm, int num_ranks) {
  const int length = narrow<int>(text.size());
  std::vector<int> lengths(static_cast<std::size_t>(num_ranks));
  PC_MPI(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm));
  return lengths;
}

}  // namespace

std::vector<std::string> HostGroup::all_gather(const std::string& text) const {
  const LibraryScope library;
  Parts parts(gather_lengths(text, comm_, num_ranks_));
  PC_MPI(MPI_Allgatherv(text.data(), narrow<int>(text.size()), MPI_CHAR, parts.all.data(), parts.lengths.data(),
                        parts.offsets.data(), MPI_CHAR, comm_));
  return parts.texts();
}

std::vector<std::string> HostGroup::gather(const std::string& text, int root) const {
  const LibraryScope library;
  std::vector<int> lengths = gather_lengths(text, comm_, num_ranks_);
  if (rank_ != root) {
    PC_MPI(
        MPI_Gatherv(text.data(), narrow<int>(text.size()), MPI_CHAR, nullptr, nullptr, nullptr, MPI_CHAR, root, comm_));
    return {};
  }
  Parts parts(std::move(lengths));
  PC_MPI(MPI_Gatherv(text.data(), narrow<int>(text.size()), MPI_CHAR, parts.all.data(), parts.lengths.data(),
                     parts.offsets.data(), MPI_CHAR, root, comm_));
  return parts.texts();
}

void HostGroup::agree(const std::vector<std::string>& problems) const {
  if (max(static_cast<std::int64_t>(problems.size())) == 0) return;
  std::string joined;
  for (const auto& problem : problems) joined += problem + '\0';
  std::vector<std::string> distinct;
  for (const auto& text : all_gather(joined)) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\0', begin);
      std::string problem = text.substr(begin, end - begin);
      if (std::find(distinct.begin(), distinct.end(), problem) == distinct.end()) distinct.push_back(problem);
      begin = end + 1;
    }
  }
  throw ConfigError(distinct);
}

void HostGroup::run_agreed(const std::function<void()>& work) const {
  std::vector<std::string> problems;
  try {
    work();
  } catch (const ConfigError& error) {
    problems = error.problems();
  } catch (const IoError& error) {
    problems.emplace_back(error.what());
  }
  agree(problems);
}

}  // namespace potato
