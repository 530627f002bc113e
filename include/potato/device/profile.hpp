// Where a stream's time goes, operation by operation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace potato {

class StreamBackend;

// An operation lasts from its call of Stream::account() to the next one's, on the stream's clock. Calls of one function
// with equal costs are added up. Allocates while it is in use.
class OperationProfile {
 public:
  struct Row {
    std::string operation;  // "gemm"
    std::int64_t num_calls = 0;
    double seconds = 0;
    double flops = 0;  // of one call
    double bytes = 0;  // of one call
  };

  // By the stream: an operation begins; the stream has been idle since `finish`, which marks the end of the last one.
  void begin(const char* function, double flops, double bytes, StreamBackend& stream);
  void finish(StreamBackend& stream);
  void collect();

  void clear();
  std::vector<Row> rows() const;  // longest first
  // A table with the time of one of `num_steps`.
  std::string table(std::int64_t num_steps) const;

 private:
  struct Call {
    const char* function;
    double flops;
    double bytes;
    double start_s;
  };

  std::deque<Call> calls_;  // addresses stay while the stream fills in the times
  std::map<std::pair<const char*, double>, Row> rows_;
};

// "void potato::gemm(potato::TensorView, ...)" -> "gemm".
std::string operation_name(const char* function);

}  // namespace potato
