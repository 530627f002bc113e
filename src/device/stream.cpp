#include "potato/device/stream.hpp"

#include "stream_backends.hpp"

namespace potato {

Event::~Event() = default;

void Event::synchronize() const {
  if (native_) {
    native_->synchronize();
    return;
  }
  for (std::uint64_t done = completed_.load(std::memory_order_acquire); done < recorded_;
       done = completed_.load(std::memory_order_acquire)) {
    completed_.wait(done, std::memory_order_acquire);
  }
}

Stream::Stream(Device device, StreamOptions options)
    : device_(device), threads_(options.threads), allow_tf32_(options.allow_tf32) {
  switch (device.kind) {
    case DeviceKind::cpu:
      backend_ = make_cpu_stream(std::move(options));
      return;
    case DeviceKind::cuda:
      if constexpr (with_cuda) backend_ = cuda::make_stream(device.ordinal, std::move(options));
      PC_CHECK(backend_ != nullptr, "this build has no CUDA back end");
      names_operations_ = true;
      return;
    case DeviceKind::dry:
      return;
  }
}

Stream::~Stream() = default;

void Stream::record(Event& event) {
  if (backend_) backend_->record(event);
}

void Stream::wait(Event& event) {
  if (backend_) backend_->wait(event);
}

void Stream::synchronize() {
  if (!backend_) return;
  if (profile_) profile_->finish(*backend_);
  backend_->synchronize();
  if (profile_) profile_->collect();
}

void Stream::begin_operation(const char* function, double flops, double bytes) {
  if (profile_) profile_->begin(function, flops, bytes, *backend_);
  backend_->name_operation(function);
}

void Stream::set_profile(OperationProfile* profile) noexcept {
  if (!backend_) return;
  profile_ = profile;
  names_operations_ = profile != nullptr || device_.kind == DeviceKind::cuda;
}

void Stream::transfer(void* destination, const void* source, std::int64_t num_bytes) {
  account(0, 2.0 * static_cast<double>(num_bytes));
  if (backend_ && num_bytes > 0) backend_->transfer(destination, source, num_bytes);
}

void Stream::mark_time(double* time_s) {
  if (backend_) {
    backend_->mark_time(time_s);
  } else {
    *time_s = 0;
  }
}

void* Stream::workspace(std::int64_t num_bytes) {
  PC_CHECK(backend_ != nullptr, "a dry stream has no workspace");
  return backend_->workspace(num_bytes);
}

void Stream::set_workspace(void* memory, std::int64_t num_bytes) {
  if (backend_) backend_->set_workspace(memory, num_bytes);
}

}  // namespace potato
