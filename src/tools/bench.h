// The training step of a shape on random tokens: what the bench commands measure.
#pragma once
#include <string>
#include <vector>

#include "relume/train/step_bench.h"

namespace relume::tools {

struct BenchArguments {
  std::string shape = "11m", precision = "fp32", recompute = "store", device = "cpu";
  std::int64_t batch = 4, sequence = 256, steps = 6, warmup = 2, threads = 0;
  double fraction = 2.0 / 3.0;
  double activations = 0.5;  ///< recompute auto: budget above persistent values, as a share of what storing everything takes
  std::vector<double> shares{0.75, 0.5, 0.3, 0.15};  ///< plans: of the activation memory
  std::int64_t layers = 0;   ///< plan: instead of the shape's
  bool json = false, fine = false;
};

/// A config with the arguments' model, batch, precision (resolved) and policies.
[[nodiscard]] Config config_of(const BenchArguments& arguments, const DeviceInfo& device);

/// Sets the budget of an automatic config. Returns the rates that policies are chosen and times predicted with.
[[nodiscard]] DeviceRates rates_for(const BenchArguments& arguments, Config& config, Backend& backend);

[[nodiscard]] double median(std::vector<double> values);

int run_bench_step(const BenchArguments& arguments);
int run_bench_ops(const BenchArguments& arguments);
int run_bench_plan(const BenchArguments& arguments);
int run_bench_plans(const BenchArguments& arguments);

}  // namespace relume::tools
