// The flight recorder: what a rank did last, in a small memory-mapped file that any other process can read while the
// rank itself is stuck.
//
// Writers only store (relaxed, no system call, no lock); readers take what they find. A record is consistent once its
// rank stands still, which is when it is looked at.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace potato {

// What the main thread is at.
enum class FlightPhase : std::int64_t {
  starting,
  loading_data,
  enqueueing,
  waiting,
  evaluating,
  saving,
  sampling,
  ending
};

// An operation between ranks.
enum class FlightOp : std::int64_t { none, all_reduce, all_gather, reduce_scatter, broadcast, send, receive };

enum class FlightPass : std::int64_t { none, forward, backward, update };

const char* flight_name(FlightPhase phase);
const char* flight_name(FlightOp op);
const char* flight_name(FlightPass pass);

using FlightField = std::atomic<std::int64_t>;
static_assert(FlightField::is_always_lock_free);

// A stream's last operation.
struct FlightLane {
  FlightField pass{0};  // FlightPass
  FlightField micro_batch{-1};
  FlightField layer{-1};    // −1: embedding or head
  FlightField op{0};        // FlightOp that the stream is inside, or last was
  FlightField inside{0};    // 1 between its begin and end
  FlightField axis{0};      // of the communicator, as its enumeration counts
  FlightField sequence{0};  // of the operation on that axis, 1 for the first
  FlightField peer{-1};     // of a send or receive, in the axis' group
  FlightField bytes{0};
  FlightField since_ns{0};  // of the last change; clock of the system, so that hosts can be compared
};

// The file. All fields but the first two are written by the rank while others read.
struct FlightRecord {
  static constexpr int num_axes = 5;
  static constexpr int num_lanes = 2;  // compute, communication
  static constexpr std::uint64_t right_magic = 0x5054464C49474854;

  std::array<char, 128> text{};  // "pid 4711 rank 3 host node7\n", for people
  std::uint64_t magic = right_magic;
  std::uint64_t run_id = 0;  // the same for all ranks of a run
  std::int64_t pid = 0;
  std::int64_t world_rank = 0;
  std::array<std::int64_t, 3> coordinates{};  // data, tensor, pipeline
  std::array<char, 64> host{};
  FlightField progress{0};  // counts everything below
  FlightField step{0};
  FlightField phase{0};
  FlightField phase_since_ns{0};
  std::array<FlightField, num_axes> entered{};  // collectives of each axis
  std::array<FlightField, num_axes> left{};
  std::array<FlightLane, num_lanes> lanes{};
};

struct FlightIdentity {
  std::uint64_t run_id = 0;
  std::int64_t world_rank = 0;
  std::array<std::int64_t, 3> coordinates{};
};

std::int64_t system_time_ns() noexcept;

class FlightRecorder {
 public:
  // Makes FOLDER/rank-00003 anew. Throws IoError.
  FlightRecorder(const std::string& folder, const FlightIdentity& identity);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  static std::string path(const std::string& folder, std::int64_t world_rank);
  const FlightRecord& record() const noexcept { return *record_; }

  // Something that takes long is not stuck.
  void progress() noexcept { record_->progress.fetch_add(1, std::memory_order_relaxed); }
  void set_step(std::int64_t step) noexcept;
  void set_phase(FlightPhase phase) noexcept;
  // Each lane has one writer at a time, and so has each axis.
  void set_pass(int lane, FlightPass pass, std::int64_t micro_batch, std::int64_t layer) noexcept;
  void begin(int lane, int axis, FlightOp op, std::int64_t peer, std::int64_t bytes) noexcept;
  void end(int lane, int axis) noexcept;

 private:
  FlightRecord* record_;
};

// A recorded file of any rank; readable() is false where it is missing, or of another program.
class FlightReader {
 public:
  explicit FlightReader(const std::string& path);
  ~FlightReader();
  FlightReader(FlightReader&& other) noexcept;
  FlightReader& operator=(FlightReader&&) = delete;

  bool readable() const noexcept { return record_ != nullptr; }
  const FlightRecord& record() const noexcept { return *record_; }

 private:
  const FlightRecord* record_ = nullptr;
};

}  // namespace potato
