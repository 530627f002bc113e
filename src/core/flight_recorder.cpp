#include "potato/core/flight_recorder.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "potato/core/posix_file.hpp"

namespace potato {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

template <typename Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

}  // namespace

const char* flight_name(FlightPhase phase) {
  constexpr std::array<const char*, 8> names = {
      "starting",   "loading data", "enqueueing a step", "waiting for its streams",
      "evaluating", "saving",       "sampling",          "ending"};
  return number(phase) >= 0 && number(phase) < std::ssize(names) ? names[static_cast<std::size_t>(phase)] : "unknown";
}

const char* flight_name(FlightOp op) {
  constexpr std::array<const char*, 7> names = {"nothing",   "all-reduce", "all-gather", "reduce-scatter",
                                                "broadcast", "send",       "receive"};
  return number(op) >= 0 && number(op) < std::ssize(names) ? names[static_cast<std::size_t>(op)] : "unknown";
}

const char* flight_name(FlightPass pass) {
  constexpr std::array<const char*, 4> names = {"no pass", "forward", "backward", "update"};
  return number(pass) >= 0 && number(pass) < std::ssize(names) ? names[static_cast<std::size_t>(pass)] : "unknown";
}

std::int64_t system_time_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string FlightRecorder::path(const std::string& folder, std::int64_t world_rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/rank-%05lld", static_cast<long long>(world_rank));
  return folder + name.data();
}

FlightRecorder::FlightRecorder(const std::string& folder, const FlightIdentity& identity) {
  const std::string file_path = path(folder, identity.world_rank);
  ::unlink(file_path.c_str());  // another process may still hold the old one
  const FileDescriptor file(::open(file_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.is_open()) throw IoError(cat("cannot create ", file_path, ": ", system_words(errno)));
  // Really taken: a store into a hole on a full disk would end the process.
  if (const int error = ::posix_fallocate(file.get(), 0, sizeof(FlightRecord)); error != 0) {
    throw IoError(cat("cannot write ", file_path, ": ", system_words(error)));
  }
  void* memory = ::mmap(nullptr, sizeof(FlightRecord), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw IoError(cat("cannot map ", file_path, ": ", system_words(errno)));
  record_ = new (memory) FlightRecord;
  record_->run_id = identity.run_id;
  record_->pid = ::getpid();
  record_->world_rank = identity.world_rank;
  record_->coordinates = identity.coordinates;
  ::gethostname(record_->host.data(), record_->host.size() - 1);
  std::snprintf(record_->text.data(), record_->text.size(), "pid %lld rank %lld host %s\n",
                static_cast<long long>(record_->pid), static_cast<long long>(record_->world_rank),
                record_->host.data());
  set_phase(FlightPhase::starting);
}

FlightRecorder::~FlightRecorder() { ::munmap(record_, sizeof(FlightRecord)); }

void FlightRecorder::set_step(std::int64_t step) noexcept {
  record_->step.store(step, relaxed);
  progress();
}

void FlightRecorder::set_phase(FlightPhase phase) noexcept {
  record_->phase.store(number(phase), relaxed);
  record_->phase_since_ns.store(system_time_ns(), relaxed);
  progress();
}

void FlightRecorder::set_pass(int lane, FlightPass pass, std::int64_t micro_batch, std::int64_t layer) noexcept {
  FlightLane& to = record_->lanes[static_cast<std::size_t>(lane)];
  to.pass.store(number(pass), relaxed);
  to.micro_batch.store(micro_batch, relaxed);
  to.layer.store(layer, relaxed);
  to.since_ns.store(system_time_ns(), relaxed);
  progress();
}

void FlightRecorder::begin(int lane, int axis, FlightOp op, std::int64_t peer, std::int64_t bytes) noexcept {
  FlightLane& to = record_->lanes[static_cast<std::size_t>(lane)];
  FlightField& entered = record_->entered[static_cast<std::size_t>(axis)];
  const bool is_collective = op != FlightOp::send && op != FlightOp::receive;
  if (is_collective) entered.store(entered.load(relaxed) + 1, relaxed);
  to.op.store(number(op), relaxed);
  to.axis.store(axis, relaxed);
  to.sequence.store(is_collective ? entered.load(relaxed) : 0, relaxed);
  to.peer.store(peer, relaxed);
  to.bytes.store(bytes, relaxed);
  to.since_ns.store(system_time_ns(), relaxed);
  to.inside.store(1, relaxed);
  progress();
}

void FlightRecorder::end(int lane, int axis) noexcept {
  FlightLane& to = record_->lanes[static_cast<std::size_t>(lane)];
  record_->left[static_cast<std::size_t>(axis)].store(record_->entered[static_cast<std::size_t>(axis)].load(relaxed),
                                                      relaxed);
  to.inside.store(0, relaxed);
  to.since_ns.store(system_time_ns(), relaxed);
  progress();
}

FlightReader::FlightReader(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts {};
  if (!file.is_open() || ::fstat(file.get(), &facts) != 0) return;
  if (facts.st_size < static_cast<off_t>(sizeof(FlightRecord))) return;
  void* memory = ::mmap(nullptr, sizeof(FlightRecord), PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return;
  const auto* record = static_cast<const FlightRecord*>(memory);
  if (record->magic == FlightRecord::right_magic) {
    record_ = record;
  } else {
    ::munmap(memory, sizeof(FlightRecord));
  }
}

FlightReader::~FlightReader() {
  if (record_ != nullptr) ::munmap(const_cast<FlightRecord*>(record_), sizeof(FlightRecord));
}

FlightReader::FlightReader(FlightReader&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}

}  // namespace potato
