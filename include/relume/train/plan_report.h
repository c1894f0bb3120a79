// What a plan says, for programs (JSON), terminals (a table) and eyes (SVG).
#pragma once
#include <array>
#include <string>
#include <vector>

#include "relume/train/program.h"

namespace relume {

struct PlanReport {
  struct Item {
    std::string name;
    std::int64_t bytes = 0;
  };
  struct Layer {
    std::int64_t layer = 0;
    std::string attention, ffn;  ///< "greedy 0.67 (12 of 18)"
    std::int64_t saved_bytes = 0;
  };
  /// One node of the timeline.
  struct Tick {
    std::string label;  ///< "layer 3 ffn matmul"
    Phase phase = Phase::kForward;
    std::int64_t layer = -1;
    double seconds = 0;  ///< modelled
    std::array<std::int64_t, kCategoryCount> bytes{};
  };

  std::string title;   ///< model and batch in one line
  std::string device;
  std::int64_t parameters = 0, tokens_per_step = 0, micro_batches = 1, head_chunk_rows = 0;
  std::vector<Item> persistent;      ///< state by kind
  std::vector<Item> saved_at_peak;   ///< by value name
  std::array<std::int64_t, kCategoryCount> at_peak{};
  std::int64_t persistent_bytes = 0, arena_bytes = 0, lower_bound_bytes = 0, evaluation_arena_bytes = 0;
  std::string peak_node;
  double step_flops = 0, recompute_flops = 0, model_flops = 0;  ///< of one optimizer step
  std::vector<Layer> layers;
  std::vector<Tick> ticks;
  std::size_t nodes = 0, buffers = 0;
  double plan_s = 0;  ///< time that recording and planning took; 0 = not measured

  [[nodiscard]] std::int64_t peak_bytes() const { return persistent_bytes + std::max(arena_bytes, evaluation_arena_bytes); }
};

[[nodiscard]] PlanReport report_plan(const Config& config, const Program& program, const std::string& device);
[[nodiscard]] std::string plan_json(const PlanReport& report);
[[nodiscard]] std::string plan_table(const PlanReport& report);
/// Memory over the step as stacked areas, with phases and the policy of every layer. Readable in light and dark.
[[nodiscard]] std::string plan_svg(const PlanReport& report);

}  // namespace relume
