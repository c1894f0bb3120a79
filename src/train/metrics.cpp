#include "relume/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "relume/base/error.h"
#include "relume/base/units.h"

namespace relume {

namespace {

nlohmann::json finite(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); }

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string percent(double x) { return std::isfinite(x) ? fmt::format("{:.1f}%", 100 * x) : "-"; }

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

MetricsFile::~MetricsFile() { close(descriptor_); }

void MetricsFile::line(const std::string& json) {
  const std::string text = json + "\n";
  if (write(descriptor_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
}

void MetricsFile::step(const StepMetrics& m) {
  line(nlohmann::ordered_json{{"step", m.step}, {"loss", finite(m.loss)}, {"grad_norm", finite(m.gradient_norm)}, {"learning_rate", m.learning_rate},
                              {"tokens", m.tokens}, {"step_ms", m.step_s * 1e3}, {"tok_per_s", m.tokens_per_s}, {"mfu", finite(m.mfu)},
                              {"hfu", finite(m.hfu)}, {"skipped", m.skipped}, {"skipped_total", m.skipped_total}}
           .dump());
}

void MetricsFile::evaluation(std::int64_t step, double loss, double perplexity) {
  line(nlohmann::ordered_json{{"step", step}, {"validation_loss", finite(loss)}, {"perplexity", finite(perplexity)}}.dump());
}

std::string step_line(const StepMetrics& m, std::int64_t steps, std::int64_t memory_bytes, double eta_s) {
  return fmt::format("step {}/{} | loss {:.4f} | norm {:.2f} | lr {:.1e} | {:.0f} ms | {:.0f} tok/s | mfu {} | hfu {} | mem {} | eta {}{}", m.step, steps,
                     m.loss, m.gradient_norm, m.learning_rate, m.step_s * 1e3, m.tokens_per_s, percent(m.mfu), percent(m.hfu),
                     format_bytes(memory_bytes), format_duration(eta_s), m.skipped ? " | SKIPPED (not finite)" : "");
}

ProgressLine::ProgressLine(std::FILE* out, double interval_s, bool live)
    : out_(out), interval_s_(interval_s), terminal_(live && isatty(fileno(out)) != 0), last_s_(terminal_ ? -1e9 : now_s()) {}

void ProgressLine::show(const std::string& text, double share, bool always) {
  const double now = now_s();
  if (!always && now - last_s_ < (terminal_ ? 0.1 : interval_s_)) return;
  last_s_ = now;
  if (!terminal_) {
    print(text);
    return;
  }
  winsize size = {};
  const int columns = ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
  constexpr int kBar = 12;
  const int full = static_cast<int>(std::lround(kBar * std::min(1.0, std::max(0.0, share))));
  std::string bar;
  for (int i = 0; i < kBar; ++i) bar += i < full ? "█" : "░";
  fmt::print(out_, "\r\033[K\033[36m{}\033[0m {}", bar, text.substr(0, static_cast<std::size_t>(columns - kBar - 2)));
  std::fflush(out_);
  drawn_ = true;
}

void ProgressLine::print(const std::string& text) {
  finish();
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void ProgressLine::finish() {
  if (drawn_) fmt::print(out_, "\r\033[K");
  drawn_ = false;
}

}  // namespace relume
