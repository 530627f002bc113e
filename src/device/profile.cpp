#include "potato/device/profile.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "potato/device/stream.hpp"

namespace potato {

void OperationProfile::begin(const char* function, double flops, double bytes, StreamBackend& stream) {
  Call& call = calls_.emplace_back(Call{function, flops, bytes, 0});
  stream.mark_time(&call.start_s);
}

void OperationProfile::finish(StreamBackend& stream) {
  if (!calls_.empty()) begin(nullptr, 0, 0, stream);
}

void OperationProfile::collect() {
  for (std::size_t i = 0; i + 1 < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.function == nullptr) continue;
    Row& row = rows_[{call.function, call.flops}];
    if (row.num_calls == 0) row = {operation_name(call.function), 0, 0, call.flops, call.bytes};
    ++row.num_calls;
    row.seconds += calls_[i + 1].start_s - call.start_s;
  }
  calls_.clear();
}

void OperationProfile::clear() {
  calls_.clear();
  rows_.clear();
}

std::vector<OperationProfile::Row> OperationProfile::rows() const {
  std::vector<Row> rows;
  rows.reserve(rows_.size());
  for (const auto& [key, row] : rows_) rows.push_back(row);
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

std::string OperationProfile::table(std::int64_t num_steps) const {
  const std::vector<Row> all = rows();
  double total_s = 0;
  for (const Row& row : all) total_s += row.seconds;
  std::string text = "operation                             calls   ms/step  share   TFLOP/s      GB/s  (a step)\n";
  for (const Row& row : all) {
    const double calls = static_cast<double>(row.num_calls);
    char line[160];
    std::snprintf(line, sizeof(line), "%-36s %6.1f  %8.3f  %4.1f %%  %8.2f  %8.1f\n", row.operation.c_str(),
                  calls / static_cast<double>(num_steps), 1e3 * row.seconds / static_cast<double>(num_steps),
                  100 * row.seconds / total_s, calls * row.flops / row.seconds * 1e-12,
                  calls * row.bytes / row.seconds * 1e-9);
    text += line;
  }
  char line[80];
  std::snprintf(line, sizeof(line), "in all %47.3f ms\n", 1e3 * total_s / static_cast<double>(num_steps));
  return text + line;
}

std::string operation_name(const char* function) {
  std::string_view text(function);
  text = text.substr(0, text.find('('));
  const std::size_t begin = text.find_last_of(" :");
  return std::string(begin == std::string_view::npos ? text : text.substr(begin + 1));
}

}  // namespace potato
