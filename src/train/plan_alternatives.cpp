// What other plans would be: budgets against time, and the options of one layer.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "chart.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/config/json_file.h"
#include "relume/train/plan_report.h"

namespace relume {

std::vector<PlanReport::Alternative> pareto(const RematPlanner& planner, std::size_t points) {
  const std::int64_t least = planner.minimum_bytes(), enough = std::max(least, planner.enough_bytes());
  std::vector<PlanReport::Alternative> found;
  for (std::size_t i = 0; i < points; ++i) {
    const std::int64_t budget = i + 1 == points ? enough : least + (enough - least) * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(points - 1);
    if (!found.empty() && budget == found.back().budget_bytes) continue;
    if (const auto r = planner.choose(budget)) found.push_back({budget, r->step_s / planner.store_step_s() - 1});
  }
  return found;
}

std::string pareto_csv(const std::vector<PlanReport::Alternative>& points) {
  std::string out = "budget_bytes,overhead\n";
  for (const auto& p : points) out += fmt::format("{},{:.6f}\n", p.budget_bytes, p.overhead);
  return out;
}

std::string pareto_svg(const std::vector<PlanReport::Alternative>& points, const PlanReport& report) {
  svg::Chart chart{.title = "Time of a step against storing everything, by memory budget", .x_label = "budget, GiB", .y_label = "predicted overhead, %", .from_zero = true,
                   .width = 760, .height = 360};
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  chart.series.push_back({"fastest plan within the budget", svg::series_colour(0), {}, true});
  for (const auto& p : points) chart.series[0].points.emplace_back(gib(p.budget_bytes), 100 * p.overhead);
  chart.series.push_back({"this plan", "#d23b3b", {{gib(report.peak_bytes()), 100 * report.overhead()}}, true});
  return svg::draw(chart);
}

std::string explain_layer(const Config& c, const RematPlanner& planner, std::int64_t layer) {
  if (layer < 0 || layer >= c.model.num_hidden_layers)
    throw Error(ErrorCode::kUsage, fmt::format("--explain {}: the model has layers 0 to {}", layer, c.model.num_hidden_layers - 1));
  const std::int64_t budget = c.memory.budget ? c.memory.budget : kUnlimited;
  const auto chosen = planner.choose(budget);
  const int taken = chosen ? chosen->option[static_cast<std::size_t>(layer)] : -1;
  struct Row {
    int option;
    std::optional<RematPlanner::Result> result;
  };
  std::vector<Row> rows;
  for (int option : planner.allowed(layer)) rows.push_back({option, option == taken ? chosen : planner.choose(budget, layer, option)});
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    const double x = a.result ? a.result->step_s : 1e300, y = b.result ? b.result->step_s : 1e300;
    return x != y ? x < y : (a.option == taken) > (b.option == taken);
  });
  std::string out = fmt::format("layer {}: what it could keep, and the step if it did while all others choose anew\n {:<58}{:>11}{:>13}{:>12}{:>11}\n", layer, "", "saves",
                                "layer needs", "layer time", "step");
  constexpr std::size_t kMost = 16;
  for (std::size_t i = 0; i < std::min(kMost, rows.size()); ++i) {
    const LayerOption& o = planner.options()[static_cast<std::size_t>(rows[i].option)];
    out += fmt::format(" {:<58}{:>11}{:>13}{:>10.1f} ms{:>11}\n", (rows[i].option == taken ? "> " : "  ") + policy_name(o.policy), format_bytes(o.cost.saved_bytes),
                       format_bytes(o.cost.peak_bytes), o.cost.seconds * 1e3,
                       rows[i].result ? fmt::format("{:+.2f}%", 100 * (rows[i].result->step_s / planner.store_step_s() - 1)) : "does not fit");
  }
  if (rows.size() > kMost) out += fmt::format("   and {} more that are no faster\n", rows.size() - kMost);
  if (rows.size() == 1) out += "   the config fixes this layer's policies\n";
  return out;
}

std::string plan_identity(const Config& c) {
  const auto all = nlohmann::ordered_json::parse(to_json(c));
  return nlohmann::ordered_json{{"model", all["model"]}, {"precision", c.precision}, {"sequence_length", c.data.sequence_length}, {"batch", all["batch"]},
                                {"remat", all["remat"]}, {"memory", all["memory"]}, {"audit", all["audit"]}}
      .dump();
}

RematConfig read_plan(const std::string& path, const Config& c) {
  const nlohmann::json plan = config::parse_json(config::read_text(path), path);
  if (!plan.is_object() || !plan.contains("config") || !plan.contains("remat"))
    throw Error(ErrorCode::kFile, fmt::format("{}: no plan; expected what relume plan --json prints", path));
  const auto ours = nlohmann::json::parse(plan_identity(c));
  if (plan["config"] != ours)
    throw Error(ErrorCode::kConfig, fmt::format("{}: is the plan of another config:{}\n  hint: relume plan CONFIG --json makes one for this config", path,
                                                config::differences(plan["config"], ours)));
  nlohmann::json resolved = nlohmann::json::parse(to_json(c));
  resolved["remat"] = plan["remat"];
  return parse_config(resolved.dump(), path).remat;
}

}  // namespace relume
