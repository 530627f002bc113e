#include "potato/train/reporter.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "potato/core/error.hpp"

namespace potato {

namespace {

// Lines of the metrics file up to `last_step`, so that a resumed run goes on where its checkpoint was.
std::vector<std::string> lines_up_to(const std::string& path, std::int64_t last_step) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
        json["step"].get<std::int64_t>() <= last_step) {
      lines.push_back(line);
    }
  }
  return lines;
}

std::FILE* open_metrics(const std::string& path, std::int64_t first_step) {
  const std::vector<std::string> kept = first_step > 0 ? lines_up_to(path, first_step) : std::vector<std::string>();
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    throw ConfigError(cat("log.metrics = ", path, ": cannot be written: ", std::strerror(errno),
                          "; give a path in a writable folder, or leave the key out"));
  }
  for (const auto& line : kept) std::fprintf(file, "%s\n", line.c_str());
  std::fflush(file);
  return file;
}

// JSON has no infinities or NaN.
const char* number(double value, char (&text)[32]) {
  if (std::isfinite(value)) {
    std::snprintf(text, sizeof(text), "%.17g", value);
  } else {
    std::snprintf(text, sizeof(text), "null");
  }
  return text;
}

// Of the data ranks' communication, what ran beside computation.
double hidden_share(const PhaseTimes& times) {
  if (times.data_comm_s <= 0) return 0;
  return std::clamp(1 - times.data_wait_s / times.data_comm_s, 0.0, 1.0);
}

}  // namespace

Reporter::Reporter(const Config& config, bool is_root, std::int64_t first_step) : config_(config), is_root_(is_root) {
  if (is_root_ && !config_.log.metrics.empty()) metrics_ = open_metrics(config_.log.metrics, first_step);
}

Reporter::~Reporter() {
  if (metrics_ != nullptr) std::fclose(metrics_);
}

void Reporter::step(const StepRecord& record, const PhaseTimes& times, double data_s) {
  if (!is_root_) return;
  if (metrics_ != nullptr) {
    char loss[32];
    char norm[32];
    char rate[32];
    char speed[32];
    char time[32];
    std::fprintf(metrics_,
                 "{\"step\": %lld, \"tokens\": %lld, \"loss\": %s, \"grad_norm\": %s, \"learning_rate\": %s, "
                 "\"step_ms\": %s, \"tokens_per_s\": %s}\n",
                 static_cast<long long>(record.step), static_cast<long long>(record.tokens), number(record.loss, loss),
                 number(record.grad_norm, norm), number(record.learning_rate, rate), number(record.step_s * 1e3, time),
                 number(record.tokens_per_s, speed));
    std::fflush(metrics_);
  }
  seconds_ += record.step_s;
  ++num_steps_;
  times_ += times;
  data_s_ += data_s;
  if (!prints_step(record.step)) return;
  const double mean_s = seconds_ / static_cast<double>(num_steps_);
  const auto rest_s = static_cast<long long>(mean_s * static_cast<double>(config_.train.steps - record.step) + 0.5);
  const auto tokens_per_step = static_cast<double>(config_.train.global_batch_size * config_.train.sequence_length);
  std::printf(
      "step %6lld/%lld | loss %8.5f | lr %.3e | norm %8.4f | %9.0f tokens/s | %8.1f ms/step | ETA %lld:%02lld\n",
      static_cast<long long>(record.step), static_cast<long long>(config_.train.steps), record.loss,
      record.learning_rate, record.grad_norm, tokens_per_step / mean_s, mean_s * 1e3, rest_s / 60, rest_s % 60);
  if (config_.log.wall_clock_breakdown) {
    const double to_ms = 1e3 / static_cast<double>(num_steps_);
    std::printf(
        "     rank 0, ms/step: forward %.1f | backward %.1f | communication %.1f (tensor) + %.1f (data, %.0f %% "
        "hidden) | optimizer %.1f (on the host %.1f) | data %.1f | bubble %.1f\n",
        times_.forward_s * to_ms, times_.backward_s * to_ms, times_.tensor_comm_s * to_ms, times_.data_comm_s * to_ms,
        100 * hidden_share(times_), times_.optimizer_s * to_ms, times_.host_update_s * to_ms, data_s_ * to_ms,
        times_.bubble_s * to_ms);
  }
  std::fflush(stdout);
  seconds_ = 0;
  num_steps_ = 0;
  times_ = {};
  data_s_ = 0;
}

void Reporter::evaluation(std::int64_t step, double loss, std::optional<double> bytes_per_token,
                          std::int64_t num_targets) {
  if (!is_root_) return;
  const double bits = bytes_per_token ? loss / std::numbers::ln2 / *bytes_per_token : std::nan("");
  if (metrics_ != nullptr) {
    char loss_text[32];
    char bits_text[32];
    std::fprintf(metrics_, "{\"step\": %lld, \"eval_loss\": %s, \"bits_per_byte\": %s}\n", static_cast<long long>(step),
                 number(loss, loss_text), number(bits, bits_text));
    std::fflush(metrics_);
  }
  std::printf("eval %6lld | validation loss %.5f | perplexity %.4f", static_cast<long long>(step), loss,
              std::exp(loss));
  if (bytes_per_token) std::printf(" | %.4f bits per byte", bits);
  std::printf(" | %lld tokens\n", static_cast<long long>(num_targets));
  std::fflush(stdout);
}

void Reporter::line(const std::string& text) const {
  if (!is_root_) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace potato
