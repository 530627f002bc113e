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

std::vector<std::string> HostGroup::all_gather(const std::string& text) const {
  const int length = narrow<int>(static_cast<std::int64_t>(text.size()));
  std::vector<int> lengths(static_cast<std::size_t>(num_ranks_));
  PC_MPI(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_));
  std::vector<int> offsets(lengths.size());
  std::int64_t total = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    offsets[i] = narrow<int>(total);
    total += lengths[i];
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  PC_MPI(MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, comm_));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(all.substr(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(lengths[i])));
  }
  return texts;
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
