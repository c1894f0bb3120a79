// What a run reports: metrics.jsonl for programs, a line a step for people.
#pragma once
#include <cstdio>
#include <string>

#include "relume/config/config.h"

namespace relume {

struct StepMetrics {
  std::int64_t step = 0;  ///< 1-based: the number of steps done
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;  ///< trained on so far
  double step_s = 0, tokens_per_s = 0, mfu = 0, hfu = 0;
  bool skipped = false;
  std::int64_t skipped_total = 0;
};

/// Append-only JSON lines, each written with one call; numbers that are not finite become null.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();
  void step(const StepMetrics& m);
  void evaluation(std::int64_t step, double loss, double perplexity);
  /// Any other object with a "step".
  void line(const std::string& json);

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// "step 120/2000 | loss 4.8123 | norm 0.93 | lr 5.9e-04 | 812 ms | 2522 tok/s | mfu 61.2% | mem 412 MiB | eta 0:25:10"
[[nodiscard]] std::string step_line(const StepMetrics& m, std::int64_t steps, std::int64_t memory_bytes, double eta_s);

/// A line that is rewritten in place on a terminal, and printed now and then elsewhere.
class ProgressLine {
 public:
  /// Without `live` (dumb terminals) or off a terminal a line is printed at most every `interval_s`.
  ProgressLine(std::FILE* out, double interval_s, bool live = true);
  ~ProgressLine() { finish(); }
  /// `share` of the work done draws a bar on a terminal. `always` prints the line whatever the time.
  void show(const std::string& text, double share, bool always = false);
  /// Prints a line that stays.
  void print(const std::string& text);
  void finish();

 private:
  std::FILE* out_;
  double interval_s_;
  bool terminal_, drawn_ = false;
  double last_s_;
};

}  // namespace relume
