#include "op_log.hpp"

#include "potato/core/clock.hpp"

namespace potato {

namespace {

bool is_reached(const OwnedEvent& event) {
  const cudaError_t state = cudaEventQuery(event.get());
  if (state == cudaSuccess) return true;
  cudaGetLastError();  // clears it: another check must not find it
  if (state != cudaErrorNotReady) PC_CUDA(state);
  return false;
}

}  // namespace

bool OpLog::has_ended(Entry& entry) {
  if (entry.open) return false;
  if (entry.pending && is_reached(entry.stop)) entry.pending = false;
  return !entry.pending;
}

void OpLog::begin(cudaStream_t stream, const char* name) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[num_begun_ % entries_.size()];
  current_ = nullptr;
  if (!has_ended(entry)) return;
  ++num_begun_;
  PC_CUDA(cudaEventRecord(entry.start.get(), stream));
  entry.name = name;
  entry.number = num_begun_;
  entry.open = true;
  current_ = &entry;
}

void OpLog::end(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (current_ == nullptr) return;
  PC_CUDA(cudaEventRecord(current_->stop.get(), stream));
  current_->open = false;
  current_->pending = true;
}

std::string OpLog::overdue(double timeout_s) {
  const std::lock_guard lock(mutex_);
  // In the order of the stream, so the first that has not ended is the one that may be running.
  for (std::uint64_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[(num_begun_ + i) % entries_.size()];
    if (has_ended(entry)) continue;
    if (!is_reached(entry.start)) return "";  // recorded, though `stop` may not be yet
    if (entry.open) return "";                // the host is inside the call, which has a deadline of its own
    if (watched_ != entry.number) {
      watched_ = entry.number;
      watched_since_s_ = now_s();
      return "";
    }
    const double running_s = now_s() - watched_since_s_;
    if (running_s <= timeout_s) return "";
    return cat(entry.name, " (number ", entry.number, " of its kind) has been waiting on the device for ",
               static_cast<std::int64_t>(running_s), " s");
  }
  return "";
}

}  // namespace potato
