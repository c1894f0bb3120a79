// The training step of a shape on random tokens: what the bench commands measure.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "relume/train/program.h"

namespace relume::tools {

struct BenchArguments {
  std::string shape = "11m", precision = "fp32", recompute = "store";
  std::int64_t batch = 4, sequence = 256, steps = 6, warmup = 2, threads = 0;
  double fraction = 2.0 / 3.0;
  bool json = false;
};

/// A config with the arguments' model, batch, precision (resolved) and policies.
[[nodiscard]] Config config_of(const BenchArguments& arguments, const DeviceInfo& device);

class StepBench {
 public:
  StepBench(const Config& config, Backend& backend);

  /// One step of one micro-batch on tokens drawn from `index`. Returns the loss before the update; seconds go to `step_s`.
  double step(std::int64_t index, double& step_s);

  [[nodiscard]] const Program& program() const { return program_; }
  [[nodiscard]] Executor& executor() { return *executor_; }

 private:
  const Config& config_;
  Program program_;
  Memory memory_;
  std::optional<Executor> executor_;
};

[[nodiscard]] double median(std::vector<double> values);

int run_bench_step(const BenchArguments& arguments);
int run_bench_ops(const BenchArguments& arguments);

}  // namespace relume::tools
