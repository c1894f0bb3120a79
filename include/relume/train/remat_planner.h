// The policy "auto": what every layer keeps so that a step fits the memory budget and is as fast as it can be.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "relume/model/llama.h"
#include "relume/plan/choice.h"
#include "relume/plan/plan.h"

namespace relume {

/// A way to treat a layer, with what it was found to cost when recorded.
struct LayerOption {
  LayerPolicy policy;
  LayerCost cost;
};

/// Measures every option of a layer by recording a model that has one layer for each, without running anything, and chooses
/// among them. Bytes are exact: a plan made from a choice has the arena that is said here.
class RematPlanner {
 public:
  /// config.precision is resolved. Cost: one recording with a layer for each option, a few small ones for the head.
  RematPlanner(const Config& config, const KernelTable& kernels, const DeviceRates& rates);

  struct Result {
    RematConfig remat;  ///< without "auto"
    std::vector<int> option;  ///< a layer -> index into options()
    std::int64_t head_chunk_rows = 0;
    std::int64_t peak_bytes = 0;  ///< persistent and arena
    double step_s = 0;            ///< predicted
    double variance = 0;          ///< expected relative squared error of a block's gradient, averaged over blocks
  };

  /// The fastest choice within `budget_bytes` (and the config's max_variance); absent if none fits.
  [[nodiscard]] std::optional<Result> choose(std::int64_t budget_bytes) const;
  /// The same with one layer held to one option.
  [[nodiscard]] std::optional<Result> choose(std::int64_t budget_bytes, std::int64_t layer, int option) const;
  /// The smallest budget that works, to the byte.
  [[nodiscard]] std::int64_t minimum_bytes() const;
  /// Peak of the fastest choice without a budget: more memory buys nothing.
  [[nodiscard]] std::int64_t enough_bytes() const;
  /// Predicted step when every layer stores everything: what overheads refer to.
  [[nodiscard]] double store_step_s() const;
  /// Arena when every layer stores everything, with the finest head.
  [[nodiscard]] std::int64_t store_arena_bytes() const;

  [[nodiscard]] const std::vector<LayerOption>& options() const { return options_; }
  [[nodiscard]] const ChoiceProblem& problem() const { return problem_; }
  [[nodiscard]] std::int64_t persistent_bytes() const { return persistent_bytes_; }
  /// Options that the config leaves to a layer.
  [[nodiscard]] const std::vector<int>& allowed(std::int64_t layer) const { return problem_.allowed[static_cast<std::size_t>(layer)]; }

 private:
  /// The head cut into chunks of so many rows, the largest first.
  struct Head {
    std::int64_t chunk_rows = 0, bytes = 0, elsewhere_bytes = 0;
    double seconds = 0;
  };
  void collect_options(const Config& config);
  void measure_layers(const Config& config, const KernelTable& kernels, const DeviceRates& rates);
  void measure_heads(const Config& config, const KernelTable& kernels, const DeviceRates& rates);
  [[nodiscard]] std::optional<Result> choose(const ChoiceProblem& problem, std::int64_t budget_bytes) const;
  [[nodiscard]] double step_s(double layers_s, const Head& head) const;
  /// Adds the policy if it is not there. The variance of policies that the config pins does not count: nobody chose them here.
  [[nodiscard]] int option_index(const LayerPolicy& policy, bool chosen);

  std::vector<LayerOption> options_;
  ChoiceProblem problem_;  ///< with the smallest head
  std::vector<Head> heads_;
  std::int64_t persistent_bytes_ = 0, update_bytes_ = 0, micro_batches_ = 1;
  double update_s_ = 0, variance_limit_ = 0;
  int store_ = 0;
};

/// "greedy 0.67"; "exact +qkv"
[[nodiscard]] std::string policy_name(const BlockPolicy& policy);
/// "attention exact, ffn greedy 0.67"; "whole layer exact"
[[nodiscard]] std::string policy_name(const LayerPolicy& policy);

/// The config with "auto" replaced by what fits memory.budget. Throws kBudget with the smallest budget that works, and changes
/// to the config that would fit, if none does.
[[nodiscard]] RematPlanner::Result resolve_remat(const Config& config, const KernelTable& kernels, const DeviceRates& rates);

}  // namespace relume
