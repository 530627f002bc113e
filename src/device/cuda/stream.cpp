// A CUDA stream. Host tasks run on a queue's thread of its own: the queue waits for an event of the stream, runs the
// task, and writes a number into pinned memory that the stream waits for (cuStreamWaitValue32). Host functions of CUDA
// would be simpler, but one thread of the driver serves those of all streams, and a task that blocks in MPI would then
// hold up the very task that its peer is waiting for.
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>

#include <unordered_map>
#include <vector>

#include "cpu_queue.hpp"
#include "memory.hpp"
#include "potato/device/cuda.hpp"
#include "stream_backends.hpp"

namespace potato {

namespace {

class CudaEvent final : public Event::Native {
 public:
  explicit CudaEvent(unsigned flags) { PC_CUDA(cudaEventCreateWithFlags(&event_, flags)); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void synchronize() const override { PC_CUDA(cudaEventSynchronize(event_)); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// Through the runtime, so that the program does not link the driver's library.
WaitValue find_wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  PC_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &found));
  PC_CHECK(found == cudaDriverEntryPointSuccess && function != nullptr, "the driver has no cuStreamWaitValue32");
  return reinterpret_cast<WaitValue>(function);
}

}  // namespace

class CudaStream final : public StreamBackend {
 public:
  CudaStream(int ordinal, StreamOptions options) : ordinal_(ordinal), options_(std::move(options)) {
    PC_CUDA(cudaSetDevice(ordinal));
    PC_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (options_.workspace_bytes > 0) {
      own_workspace_ =
          cuda::claim_device_memory(ordinal, options_.workspace_bytes, "workspace of stream " + options_.name);
      set_workspace(own_workspace_, options_.workspace_bytes);
    }
    PC_CUDA(cudaEventCreate(&base_));
    PC_CUDA(cudaEventRecord(base_, stream_));
  }

  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    queue_.reset();
    host_events_.clear();
    for (const Mark& mark : marks_) cudaEventDestroy(mark.event);
    cudaEventDestroy(base_);
    if (flag_ != nullptr) cuda::release_pinned_memory(flag_, sizeof(std::uint32_t));
    if (own_workspace_ != nullptr) cuda::release_device_memory(own_workspace_);
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void enqueue_host(void (*invoke)(void*), const void* closure, std::size_t bytes) override {
    if (!queue_) start_queue();
    const std::uint32_t number = ++num_host_tasks_;
    // A task takes three of the queue's slots: of so many events as slots none is recorded again before its task has
    // run.
    const cudaEvent_t reached = host_events_[number % host_events_.size()]->get();
    PC_CUDA(cudaEventRecord(reached, stream_));
    queue_->push_always([reached] { PC_CUDA(cudaEventSynchronize(reached)); });
    queue_->push(invoke, closure, bytes, false);
    queue_->push_always(
        [flag = flag_, number] { std::atomic_ref<std::uint32_t>(*flag).store(number, std::memory_order_release); });
    const CUresult result = wait_value_(static_cast<CUstream>(stream_), reinterpret_cast<CUdeviceptr>(flag_), number,
                                        CU_STREAM_WAIT_VALUE_GEQ);
    PC_CHECK(result == CUDA_SUCCESS, "cuStreamWaitValue32 gave ", static_cast<int>(result));
  }

  void record(Event& event) override {
    if (!event.native_) event.native_ = std::make_unique<CudaEvent>(cudaEventDisableTiming);
    PC_CUDA(cudaEventRecord(static_cast<CudaEvent&>(*event.native_).get(), stream_));
  }

  void wait(Event& event) override {
    PC_CHECK(event.native_ || event.recorded_ == 0, "the event was recorded on a CPU stream");
    if (event.native_) PC_CUDA(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(*event.native_).get(), 0));
  }

  void synchronize() override {
    end_range();
    PC_CUDA(cudaStreamSynchronize(stream_));
    if (queue_) queue_->synchronize();
    resolve_marks();
  }

  void transfer(void* destination, const void* source, std::int64_t num_bytes) override {
    PC_CUDA(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(num_bytes), cudaMemcpyDefault, stream_));
  }

  void mark_time(double* time_s) override {
    if (num_marks_ == marks_.size()) {
      Mark& mark = marks_.emplace_back();
      PC_CUDA(cudaEventCreate(&mark.event));
    }
    Mark& mark = marks_[num_marks_++];
    mark.time_s = time_s;
    PC_CUDA(cudaEventRecord(mark.event, stream_));
  }

  void name_operation(const char* function) override {
    end_range();
    const auto [place, is_new] = names_.try_emplace(function);
    if (is_new) place->second = operation_name(function);
    range_ = nvtxRangeStartA(place->second.c_str());  // not push and pop: two streams' ranges overlap on one thread
    has_range_ = true;
  }

  void* native_handle() const override { return stream_; }

  void* workspace(std::int64_t num_bytes) override {
    PC_CHECK(num_bytes <= workspace_bytes_, "stream ", options_.name, ": a kernel needs ", num_bytes,
             " bytes of workspace, there are ", workspace_bytes_);
    return workspace_;
  }

  void set_workspace(void* memory, std::int64_t num_bytes) override {
    workspace_ = memory;
    workspace_bytes_ = num_bytes;
  }

 private:
  struct Mark {
    cudaEvent_t event = nullptr;
    double* time_s = nullptr;
  };

  void end_range() {
    if (has_range_) nvtxRangeEnd(range_);
    has_range_ = false;
  }

  void start_queue() {
    wait_value_ = find_wait_value();
    flag_ = static_cast<std::uint32_t*>(cuda::claim_pinned_memory(sizeof(std::uint32_t), "stream " + options_.name));
    *flag_ = 0;
    for (std::size_t i = 0; i < CpuQueue::num_slots; ++i) {
      host_events_.push_back(std::make_unique<CudaEvent>(cudaEventDisableTiming | cudaEventBlockingSync));
    }
    queue_ = std::make_unique<CpuQueue>(options_);
    queue_->push_always([ordinal = ordinal_] { PC_CUDA(cudaSetDevice(ordinal)); });
  }

  // Elapsed times are floats of milliseconds: a base that moves along keeps them exact.
  void resolve_marks() {
    if (num_marks_ == 0) return;
    for (std::size_t i = 0; i < num_marks_; ++i) {
      float elapsed_ms = 0;
      PC_CUDA(cudaEventElapsedTime(&elapsed_ms, base_, marks_[i].event));
      *marks_[i].time_s = base_s_ + 1e-3 * static_cast<double>(elapsed_ms);
    }
    base_s_ = *marks_[num_marks_ - 1].time_s;
    std::swap(base_, marks_[num_marks_ - 1].event);
    num_marks_ = 0;
  }

  int ordinal_;
  StreamOptions options_;
  cudaStream_t stream_ = nullptr;
  void* own_workspace_ = nullptr;
  void* workspace_ = nullptr;
  std::int64_t workspace_bytes_ = 0;
  std::unique_ptr<CpuQueue> queue_;  // made for the first host task
  std::vector<std::unique_ptr<CudaEvent>> host_events_;
  WaitValue wait_value_ = nullptr;
  std::uint32_t* flag_ = nullptr;  // number of the last host task that has run
  std::uint32_t num_host_tasks_ = 0;
  std::unordered_map<const char*, std::string> names_;  // of operations, for NVTX
  nvtxRangeId_t range_ = 0;                             // the open one
  bool has_range_ = false;
  std::vector<Mark> marks_;
  std::size_t num_marks_ = 0;
  cudaEvent_t base_ = nullptr;
  double base_s_ = 0;
};

namespace cuda {

std::unique_ptr<StreamBackend> make_stream(int ordinal, StreamOptions options) {
  return std::make_unique<CudaStream>(ordinal, std::move(options));
}

}  // namespace cuda

}  // namespace potato
