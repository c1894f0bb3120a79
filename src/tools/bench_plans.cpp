#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/base/version.h"
#include "relume/train/metrics.h"

namespace relume::tools {

/// Plans that were chosen for shares of the activation memory, each against storing everything: steps alternate in one process, so that
/// both sides meet the same machine; the overhead is the median over pairs of neighbouring steps.
int run_bench_plans(const BenchArguments& a) {
  const auto backend = make_backend(a.device, a.threads);
  BenchArguments stored = a;
  stored.recompute = "store";
  Config store_config = config_of(stored, backend->device());
  const DeviceRates rates = rates_for(stored, store_config, *backend);
  StepBench store(store_config, *backend, rates);
  const double predicted_store_s = predicted_step_s(store.program().training, 1, rates);
  ProgressLine progress(stderr, 5, read_environment().colour);
  auto rows = nlohmann::ordered_json::array();
  for (std::size_t p = 0; p < a.shares.size(); ++p) {
    BenchArguments automatic = a;
    automatic.recompute = "auto";
    automatic.activations = a.shares[p];
    Config config = config_of(automatic, backend->device());
    (void)rates_for(automatic, config, *backend);
    std::optional<StepBench> plan;
    try {
      plan.emplace(config, *backend, rates);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kBudget) throw;
      rows.push_back({{"share", a.shares[p]}, {"possible", false}});
      continue;
    }
    std::vector<double> overheads, store_s, plan_s;
    for (std::int64_t i = 0; i < a.warmup + a.steps; ++i) {
      double s = 0, t = 0;
      // who goes first alternates, so that a machine that gets slower or faster favours neither
      if (i % 2 == 0) store.step(i, s);
      plan->step(i, t);
      if (i % 2 == 1) store.step(i, s);
      progress.show(fmt::format("{:.0f} % of the activations, pair {}/{}: {:+.1f} %", 100 * a.shares[p], i + 1, a.warmup + a.steps, 100 * (t / s - 1)),
                    (static_cast<double>(p) + static_cast<double>(i + 1) / static_cast<double>(a.warmup + a.steps)) / static_cast<double>(a.shares.size()));
      if (i < a.warmup) continue;
      overheads.push_back(t / s - 1);
      store_s.push_back(s);
      plan_s.push_back(t);
    }
    std::vector<double> sorted = overheads;
    std::sort(sorted.begin(), sorted.end());
    const Program& program = plan->program();
    rows.push_back({{"share", a.shares[p]}, {"possible", true}, {"arena_bytes", program.training.plan.arena_bytes}, {"planned_bytes", program.planned_bytes()},
                    {"predicted_overhead", predicted_step_s(program.training, 1, rates) / predicted_store_s - 1}, {"overhead", median(overheads)},
                    {"overhead_quartiles", {sorted[sorted.size() / 4], sorted[sorted.size() * 3 / 4]}}, {"step_s", median(plan_s)}, {"store_step_s", median(store_s)},
                    {"pairs", a.steps}});
  }
  progress.finish();
  if (a.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"framework", fmt::format("relume {} ({})", version(), commit())}, {"shape", a.shape}, {"dtype", store_config.precision},
                                              {"batch", a.batch}, {"seq", a.sequence}, {"device", backend->device().description},
                                              {"store_arena_bytes", store.program().training.plan.arena_bytes}, {"store_planned_bytes", store.program().planned_bytes()},
                                              {"plans", rows}}
                           .dump());
    return 0;
  }
  fmt::print("{:>12} {:>11} {:>11} {:>10} {:>10}   quartiles\n", "activations", "arena", "planned", "predicted", "measured");
  for (const auto& r : rows) {
    if (!r["possible"])
      fmt::print("{:>11.0f}%  less than any plan needs\n", 100 * r["share"].get<double>());
    else
      fmt::print("{:>11.0f}% {:>11} {:>11} {:>+9.1f}% {:>+9.1f}%   {:+.1f} to {:+.1f}%\n", 100 * r["share"].get<double>(), format_bytes(r["arena_bytes"]),
                 format_bytes(r["planned_bytes"]), 100 * r["predicted_overhead"].get<double>(), 100 * r["overhead"].get<double>(),
                 100 * r["overhead_quartiles"][0].get<double>(), 100 * r["overhead_quartiles"][1].get<double>());
  }
  return 0;
}

}  // namespace relume::tools
