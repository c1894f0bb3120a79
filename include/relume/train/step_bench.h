// Training steps on random tokens, for measuring.
#pragma once
#include <optional>

#include "relume/train/program.h"

namespace relume {

class StepBench {
 public:
  /// config.precision is resolved. Allocates and initialises; the config must outlive it.
  StepBench(const Config& config, Backend& backend, const DeviceRates& rates = {});

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

}  // namespace relume
