#include "relume/train/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chart.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/base/version.h"
#include "relume/config/json_file.h"
#include "relume/train/audit.h"

namespace relume {

namespace {

using Json = nlohmann::json;

struct Run {
  std::string name;
  Json config, plan, summary;                   // summary: planned against measured, written at the end
  std::map<std::int64_t, Json> steps, evaluations, audits;  // by step: what a resumed run repeats counts once
  std::string plan_svg, audit;
};

Json read_json(const std::string& path) { return config::parse_json(config::read_text(path), path, ErrorCode::kFile); }

std::string read_if_there(const std::string& path) { return std::filesystem::exists(path) ? config::read_text(path) : ""; }

Run read_run(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / "";
  Run run{.name = path.parent_path().filename().string()};
  if (run.name.empty() || run.name == ".") run.name = directory;
  std::ifstream metrics(path / "metrics.jsonl");
  if (!metrics) throw Error(ErrorCode::kFile, fmt::format("{}: no metrics.jsonl; expected the output directory of relume train", directory));
  run.config = read_json((path / "config.json").string());
  run.plan = read_json((path / "plan.json").string());
  run.plan_svg = read_if_there((path / "plan.svg").string());
  run.audit = read_if_there((path / "audit.json").string());
  for (std::string line; std::getline(metrics, line);) {
    Json j = Json::parse(line, nullptr, false);  // a run that was killed may end in half a line
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) continue;
    const auto step = j["step"].get<std::int64_t>();
    if (j.contains("loss")) run.steps[step] = std::move(j);
    else if (j.contains("validation_loss")) run.evaluations[step] = std::move(j);
    else if (j.contains("audit")) run.audits[step] = std::move(j);
    else if (j.contains("planned_bytes")) run.summary = std::move(j);
  }
  return run;
}

double number(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_number() ? j[key].get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// At most so many points: means over equal numbers of neighbours.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points) {
  constexpr std::size_t kMost = 600;
  const std::size_t group = (points.size() + kMost - 1) / kMost;
  if (group <= 1) return points;
  std::vector<std::pair<double, double>> out;
  for (std::size_t i = 0; i < points.size(); i += group) {
    double x = 0, y = 0, n = 0;
    for (std::size_t k = i; k < std::min(points.size(), i + group); ++k)
      if (std::isfinite(points[k].second)) x += points[k].first, y += points[k].second, ++n;
    if (n > 0) out.emplace_back(x / n, y / n);
  }
  return out;
}

using Records = std::map<std::int64_t, Json> Run::*;
using Figure = std::function<double(const Json&)>;

std::string chart(const std::vector<Run>& runs, const std::string& title, const std::string& unit, Records records, const Figure& figure, bool markers = false,
                  bool from_zero = false) {
  svg::Chart c{.title = title, .x_label = "step", .y_label = unit, .from_zero = from_zero};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [step, j] : runs[i].*records) points.emplace_back(static_cast<double>(step), figure(j));
    if (!points.empty()) c.series.push_back({runs[i].name, svg::series_colour(i), thinned(points), markers});
  }
  return c.series.empty() ? "" : "<figure>" + svg::draw(c) + "</figure>\n";
}

/// Mean of a figure over the blocks of an audit record.
Figure over_blocks(const char* key) {
  return [key](const Json& j) {
    double sum = 0, n = 0;
    for (const Json& row : j["audit"]) sum += number(row, key), ++n;
    return n > 0 ? sum / n : std::numeric_limits<double>::quiet_NaN();
  };
}

std::string policies(const Run& run) {
  std::string text;
  const Json& layers = run.plan["layers"];
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end]["attention"] == layers[i]["attention"] && layers[end]["ffn"] == layers[i]["ffn"]) ++end;
    text += fmt::format("{}{}: {} / {}", text.empty() ? "" : "; ", end - i == 1 ? std::to_string(i) : fmt::format("{}-{}", i, end - 1),
                        layers[i]["attention"].get<std::string>(), layers[i]["ffn"].get<std::string>());
    i = end;
  }
  return text;
}

std::string table(const std::vector<Run>& runs) {
  std::string out = "<table><tr><th>run</th><th>parameters</th><th>steps</th><th>last loss</th><th>validation perplexity</th><th>tok/s, median</th>"
                    "<th>memory planned</th><th>touched</th><th>step predicted</th><th>measured</th><th>attention / ffn of layers</th></tr>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& r = runs[i];
    std::vector<double> rates;
    for (const auto& [step, j] : r.steps) rates.push_back(number(j, "tok_per_s"));
    std::sort(rates.begin(), rates.end());
    const auto text = [](double x, const char* format) { return std::isfinite(x) ? fmt::format(fmt::runtime(format), x) : std::string("-"); };
    const auto bytes = [](double x) { return std::isfinite(x) ? format_bytes(static_cast<std::int64_t>(x)) : std::string("-"); };
    out += fmt::format("<tr><td><b style=\"color:{}\">{}</b></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"left\">{}</td></tr>\n",
                       svg::series_colour(i), svg::escape(r.name), text(number(r.plan, "parameters") / 1e6, "{:.1f}M"), r.steps.empty() ? 0 : r.steps.rbegin()->first,
                       r.steps.empty() ? "-" : text(number(r.steps.rbegin()->second, "loss"), "{:.4f}"),
                       r.evaluations.empty() ? "-" : text(number(r.evaluations.rbegin()->second, "perplexity"), "{:.2f}"),
                       rates.empty() ? "-" : text(rates[rates.size() / 2], "{:.0f}"), bytes(number(r.plan, "peak_bytes")), bytes(number(r.summary, "touched_bytes")),
                       text(number(r.plan, "predicted_step_s") * 1e3, "{:.0f} ms"), text(number(r.summary, "measured_step_ms"), "{:.0f} ms"), svg::escape(policies(r)));
  }
  return out + "</table>\n";
}

constexpr const char* kStyle =
    "<style>body{font-family:system-ui,sans-serif;margin:2rem auto;max-width:1120px;padding:0 1rem;color:#1c2430;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}"
    "table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}th,td{padding:.3rem .6rem;border-bottom:1px solid #c9d0d8;text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child,td.left{text-align:left}td.left{white-space:normal;min-width:20rem}figure{display:inline-block;margin:0 .4rem .6rem 0}svg{max-width:100%;height:auto}"
    "pre{font-size:.8rem;overflow-x:auto}details{margin:.5rem 0}footer{color:#5b6675;font-size:.8rem;margin-top:2rem}"
    "@media (prefers-color-scheme: dark){body{color:#e6eaf0;background:#14181f}th,td{border-color:#3a4452}}</style>\n";

}  // namespace

std::string run_report(const std::vector<std::string>& directories) {
  std::vector<Run> runs;
  for (const std::string& d : directories) runs.push_back(read_run(d));
  std::string title = "relume: ";
  for (std::size_t i = 0; i < runs.size(); ++i) title += (i ? ", " : "") + runs[i].name;
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>" + svg::escape(title) +
                    "</title>\n" + kStyle + "</head><body>\n<h1>" + svg::escape(title) + "</h1>\n" + table(runs);
  const auto value = [](const char* key, double scale = 1) { return [key, scale](const Json& j) { return number(j, key) * scale; }; };
  out += "<h2>Training</h2>\n";
  out += chart(runs, "Training loss", "nats a token", &Run::steps, value("loss"));
  out += chart(runs, "Validation perplexity", "", &Run::evaluations, value("perplexity"), true);
  out += chart(runs, "Learning rate", "", &Run::steps, value("learning_rate"), false, true);
  out += chart(runs, "Gradient norm before clipping", "", &Run::steps, value("grad_norm"), false, true);
  out += chart(runs, "Throughput", "tokens a second", &Run::steps, value("tok_per_s"), false, true);
  out += chart(runs, "Model flops utilisation", "% of the device's peak", &Run::steps, value("mfu", 100), false, true);
  out += "<h2>Memory</h2>\n";
  for (const Run& r : runs)
    if (!r.plan_svg.empty()) out += fmt::format("<details{}><summary>{}</summary>\n{}</details>\n", runs.size() == 1 ? " open" : "", svg::escape(r.name), r.plan_svg);
  const std::string kept = chart(runs, "Squared scores in what is selected, mean over blocks", "%", &Run::audits, [](const Json& j) { return 100 * over_blocks("kept")(j); }, true);
  if (!kept.empty()) {
    out += "<h2>What approximate policies selected</h2>\n" + kept;
    out += chart(runs, "Components selected in fewer than 2 % of the records", "%", &Run::audits, [](const Json& j) { return 100 * over_blocks("never")(j); }, true, true);
    out += chart(runs, "Components selected in more than 98 % of the records", "%", &Run::audits, [](const Json& j) { return 100 * over_blocks("always")(j); }, true, true);
  }
  for (const Run& r : runs)
    if (!r.audit.empty()) {
      const AuditResult a = read_audit(r.audit, r.name + "/audit.json");
      out += "<h2>Audit of " + svg::escape(r.name) + "</h2>\n<figure>" + audit_svg(a) + "</figure>\n<pre>" + svg::escape(audit_table(a, false)) + "</pre>\n";
    }
  out += "<h2>Configs</h2>\n";
  for (const Run& r : runs) out += fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", svg::escape(r.name), svg::escape(r.config.dump(2)));
  return out + fmt::format("<footer>relume {} ({})</footer>\n</body></html>\n", version(), commit());
}

}  // namespace relume
