#include "potato/train/watchdog.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <random>

#include "potato/core/allocations.hpp"
#include "potato/core/clock.hpp"
#include "potato/core/posix_file.hpp"
#include "potato/train/hang_report.hpp"

namespace potato {

namespace {

namespace fs = std::filesystem;

constexpr const char* report_file = "/hang";  // whoever creates it prints the report

// Where the signal handler writes stacks to; a handler can be told in no other way.
std::atomic<int> stack_file{-1};

void write_own_stack(int) {
  const int file = stack_file.load();
  if (file < 0) return;
  std::array<void*, 64> frames{};
  const int num_frames = backtrace(frames.data(), static_cast<int>(frames.size()));
  constexpr char head[] = "--- a thread\n";
  if (::write(file, head, sizeof(head) - 1) < 0) return;
  backtrace_symbols_fd(frames.data(), num_frames, file);
}

int stack_signal() { return SIGRTMIN + 3; }

// All threads of this process, one after the other, into `path`.
void write_stacks(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) return;
  stack_file.store(file.get());
  struct sigaction action {};
  action.sa_handler = write_own_stack;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(stack_signal(), &action, nullptr);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/task", error)) {
    const auto thread = static_cast<pid_t>(std::strtol(entry.path().filename().c_str(), nullptr, 10));
    if (thread == static_cast<pid_t>(::syscall(SYS_gettid))) continue;
    ::syscall(SYS_tgkill, ::getpid(), thread, stack_signal());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  stack_file.store(-1);
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Grows with any rank's progress.
std::int64_t progress_of_all(const std::string& folder, const GridShape& shape) {
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < shape.data * shape.tensor * shape.pipeline; ++rank) {
    const FlightReader reader(FlightRecorder::path(folder, rank));
    if (reader.readable()) sum += reader.record().progress.load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace

std::unique_ptr<FlightRecorder> make_flight_recorder(const std::string& folder, const HostGroup& world,
                                                     const GridShape& shape) {
  world.run_agreed([&] {
    if (world.rank() != 0) return;
    std::error_code error;
    fs::remove_all(folder, error);
    fs::create_directories(folder, error);
    if (error) throw ConfigError(cat(folder, ": cannot be created: ", error.message()));
  });
  std::uint64_t run_id = world.rank() == 0 ? std::random_device()() : 0;
  world.broadcast(&run_id, sizeof(run_id), 0);
  std::unique_ptr<FlightRecorder> recorder;
  world.run_agreed([&] {
    const GridCoordinates at = grid_coordinates(shape, world.rank());
    recorder = std::make_unique<FlightRecorder>(
        folder, FlightIdentity{run_id, world.rank(), {at.data, at.tensor, at.pipeline}});
  });
  world.run_agreed([&] {
    const FlightReader first(FlightRecorder::path(folder, 0));
    if (first.readable() && first.record().run_id == run_id) return;
    throw ConfigError(cat("run.dir: host ", host_name(), " does not see ", FlightRecorder::path(folder, 0),
                          " of rank 0; choose a folder that all hosts share"));
  });
  return recorder;
}

Watchdog::Watchdog(WatchdogOptions options, const FlightRecorder& recorder,
                   std::function<void(const std::string&)> on_hang)
    : options_(std::move(options)), recorder_(recorder), on_hang_(std::move(on_hang)) {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // loads what a signal handler must not load
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Watchdog::~Watchdog() = default;

void Watchdog::watch(const std::stop_token& stop) {
  const LibraryScope library;
  const auto look_every = std::chrono::duration<double>(std::min(1.0, options_.timeout_s / 10));
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  std::int64_t own = -1;
  std::int64_t all = -1;
  double own_since_s = now_s();
  double all_since_s = now_s();
  while (!never.wait_for(lock, stop, look_every, [] { return false; }) && !stop.stop_requested()) {
    const double time_s = now_s();
    const std::int64_t progress = recorder_.record().progress.load(std::memory_order_relaxed);
    if (progress != own) {
      own = progress;
      own_since_s = time_s;
      all = -1;
      continue;
    }
    if (time_s - own_since_s < options_.timeout_s / 2) continue;
    const std::int64_t sum = progress_of_all(options_.folder, options_.shape);
    if (sum != all) {
      all = sum;
      all_since_s = time_s;
    }
    if (time_s - all_since_s < options_.timeout_s / 2) continue;
    report();
    return;
  }
}

void Watchdog::report() {
  std::thread([seconds = options_.abort_timeout_s] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    _exit(1);
  }).detach();
  const auto suspects =
      sort_by_suspicion(read_rank_states(options_.folder, options_.shape, host_name()), options_.shape);
  write_stacks(cat(FlightRecorder::path(options_.folder, options_.world_rank), ".stack"));
  const std::string line =
      cat("hang: nothing has moved for ", options_.timeout_s, " s (comm.timeout_s): ", accusation(suspects.front()));
  const int file = ::open((options_.folder + report_file).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) {
    // Another rank reports and ends the job; if it cannot, this one does.
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.abort_timeout_s / 2));
    on_hang_(line);
    return;
  }
  const std::string text =
      cat(line, "\n", hang_table(suspects), "stacks of each rank's threads: ", options_.folder, "/rank-N.stack\n");
  std::fprintf(stderr, "potatochat: %s", text.c_str());
  std::fflush(stderr);
  if (::write(file, text.data(), text.size()) < 0) std::perror("potatochat: the hang report");
  ::close(file);
  // Time for the others' stacks.
  std::this_thread::sleep_for(std::chrono::duration<double>(std::min(1.0, options_.abort_timeout_s / 4)));
  on_hang_(line);
}

}  // namespace potato
