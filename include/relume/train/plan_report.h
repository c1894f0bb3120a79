// What a plan says, for programs (JSON), terminals (a table) and eyes (SVG).
#pragma once
#include <array>
#include <optional>
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
    double seconds = 0;  ///< predicted
    std::array<std::int64_t, kCategoryCount> bytes{};
  };

  /// A buffer of the arena: a rectangle of addresses and time.
  struct Rectangle {
    std::string label;
    Category category = Category::kSaved;
    int begin = 0, end = 0;  ///< ticks
    std::int64_t offset = 0, bytes = 0;
  };
  /// What another budget would give.
  struct Alternative {
    std::int64_t budget_bytes = 0;
    double overhead = 0;
  };
  /// What choosing policies found; absent if nothing was chosen and no budget given.
  struct Budget {
    std::int64_t budget_bytes = 0;   ///< 0 = none was given
    std::int64_t minimum_bytes = 0;
    bool automatic = false;
    double variance = 0;             ///< expected, of approximate policies that were chosen
    std::vector<Alternative> alternatives;
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
  double step_s = 0, store_step_s = 0;  ///< predicted, of one optimizer step: planned, and with everything stored
  std::int64_t measured_bytes = 0;  ///< persistent values and arena that a run touched; 0 = not run
  std::vector<Rectangle> rectangles;
  std::optional<Budget> budget;
  std::string remat;   ///< JSON of the policies that were planned
  std::string identity;  ///< JSON of all that decides the plan; a plan of another one is refused
  DeviceRates rates;
  double plan_s = 0;  ///< time that recording and planning took; 0 = not measured

  [[nodiscard]] double overhead() const { return store_step_s > 0 ? step_s / store_step_s - 1 : 0; }

  [[nodiscard]] std::int64_t peak_bytes() const { return persistent_bytes + std::max(arena_bytes, evaluation_arena_bytes); }
};

[[nodiscard]] PlanReport report_plan(const Config& config, const Program& program, const KernelTable& kernels, const DeviceInfo& device,
                                     const DeviceRates& rates);
/// Everything that decides a plan, as JSON: model, batch, precision, policies as written, budget.
[[nodiscard]] std::string plan_identity(const Config& config);
/// The policies of a plan.json. Throws kConfig with what differs if it belongs to another config.
[[nodiscard]] RematConfig read_plan(const std::string& path, const Config& config);

/// Budgets from the smallest that works to where more buys nothing, with what each costs.
[[nodiscard]] std::vector<PlanReport::Alternative> pareto(const RematPlanner& planner, std::size_t points);
[[nodiscard]] std::string pareto_csv(const std::vector<PlanReport::Alternative>& points);
[[nodiscard]] std::string pareto_svg(const std::vector<PlanReport::Alternative>& points, const PlanReport& report);
/// What a layer could do instead, and what that would cost.
[[nodiscard]] std::string explain_layer(const Config& config, const RematPlanner& planner, std::int64_t layer);
[[nodiscard]] std::string plan_json(const PlanReport& report);
[[nodiscard]] std::string plan_table(const PlanReport& report);
/// The nodes of a step by what they compute: how often, predicted time, flops and bytes.
[[nodiscard]] std::string plan_nodes(const Config& config, const Recording& recording, const DeviceRates& rates);
/// Memory over the step as stacked areas with phases, budget and the policy of every layer; below it the arena, address over
/// time. Readable in light and dark.
[[nodiscard]] std::string plan_svg(const PlanReport& report);

}  // namespace relume
