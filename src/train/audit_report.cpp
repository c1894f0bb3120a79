#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "chart.h"
#include "relume/base/error.h"
#include "relume/train/audit.h"

namespace relume {

namespace {

/// Rows that differ in the layer alone.
struct Group {
  const AuditRow* first;
  std::vector<const AuditRow*> rows;

  template <class Member>
  [[nodiscard]] double mean(Member member) const {
    double sum = 0;
    for (const AuditRow* r : rows) sum += r->*member;
    return sum / static_cast<double>(rows.size());
  }
  /// Mean over layers of a figure with a standard error from their spread.
  [[nodiscard]] std::pair<double, double> bias_ratio() const {
    const double m = mean(&AuditRow::bias_ratio);
    double sum = 0;
    for (const AuditRow* r : rows) sum += (r->bias_ratio - m) * (r->bias_ratio - m);
    const double n = static_cast<double>(rows.size());
    return {m, n > 1 ? std::sqrt(sum / (n - 1) / n) : rows[0]->bias_ratio_error};
  }
};

std::vector<Group> groups(const AuditResult& result) {
  std::vector<Group> found;
  for (const AuditRow& r : result.rows) {
    if (found.empty() || found.back().first->policy != r.policy || found.back().first->fraction != r.fraction || found.back().first->block != r.block)
      found.push_back({&r, {}});
    found.back().rows.push_back(&r);
  }
  return found;
}

}  // namespace

std::string audit_json(const AuditResult& a) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array(), summary = Json::array();
  for (const AuditRow& r : a.rows)
    rows.push_back({{"layer", r.layer}, {"block", r.block}, {"policy", r.policy}, {"fraction", r.fraction}, {"k", r.k}, {"components", r.components},
                    {"cosine", r.cosine}, {"relative_error", r.relative_error}, {"dx_cosine", r.dx_cosine}, {"dx_relative_error", r.dx_relative_error},
                    {"bias_ratio", r.bias_ratio}, {"bias_ratio_error", r.bias_ratio_error}, {"dx_bias_ratio", r.dx_bias_ratio}, {"variance", r.variance},
                    {"theory_variance", r.theory_variance}, {"adam_noise", r.adam_noise}, {"never", r.never}, {"always", r.always},
                    {"flops_saved", r.flops_saved}, {"time_saved", r.time_saved}});
  for (const Group& g : groups(a)) {
    const auto [ratio, error] = g.bias_ratio();
    summary.push_back({{"policy", g.first->policy}, {"fraction", g.first->fraction}, {"block", g.first->block}, {"cosine", g.mean(&AuditRow::cosine)},
                       {"relative_error", g.mean(&AuditRow::relative_error)}, {"bias_ratio", ratio}, {"bias_ratio_error", error},
                       {"variance", g.mean(&AuditRow::variance)}, {"theory_variance", g.mean(&AuditRow::theory_variance)},
                       {"adam_noise", g.mean(&AuditRow::adam_noise)}, {"flops_saved", g.mean(&AuditRow::flops_saved)}, {"time_saved", g.mean(&AuditRow::time_saved)}});
  }
  return Json{{"weights", a.weights}, {"precision", a.precision}, {"device", a.device}, {"sequences", a.sequences}, {"tokens", a.tokens},
              {"batches", a.batches}, {"draws", a.draws}, {"summary", summary}, {"policies", rows}}
             .dump(2) +
         "\n";
}

AuditResult read_audit(const std::string& json, const std::string& origin) {
  try {
    const auto j = nlohmann::json::parse(json);
    AuditResult a{.weights = j.at("weights"), .device = j.at("device"), .precision = j.at("precision"), .sequences = j.at("sequences"), .tokens = j.at("tokens"),
                  .batches = j.at("batches"), .draws = j.at("draws")};
    for (const auto& r : j.at("policies"))
      a.rows.push_back({.layer = r.at("layer"), .block = r.at("block"), .policy = r.at("policy"), .fraction = r.at("fraction"), .k = r.at("k"),
                        .components = r.at("components"), .cosine = r.at("cosine"), .relative_error = r.at("relative_error"), .dx_cosine = r.at("dx_cosine"),
                        .dx_relative_error = r.at("dx_relative_error"), .bias_ratio = r.at("bias_ratio"), .bias_ratio_error = r.at("bias_ratio_error"),
                        .dx_bias_ratio = r.at("dx_bias_ratio"), .variance = r.at("variance"), .theory_variance = r.at("theory_variance"),
                        .adam_noise = r.at("adam_noise"), .never = r.at("never"), .always = r.at("always"), .flops_saved = r.at("flops_saved"),
                        .time_saved = r.at("time_saved")});
    return a;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kFile, fmt::format("{}: not what relume audit --json prints: {}", origin, e.what()));
  }
}

std::string audit_table(const AuditResult& a, bool all) {
  std::string out = fmt::format("gradient of each block against the exact one: weights {}, {} batches of {} x {} tokens, {} draws, {}\n", a.weights, a.batches, a.sequences,
                                a.tokens, a.draws, a.precision);
  out += fmt::format(" {:<32}{:>8}{:>8}{:>8}{:>16}{:>10}{:>8}{:>7}{:>8}{:>8}{:>8}{:>7}\n", "", "cosine", "error", "of dx", "bias ratio", "variance", "theory", "Adam", "never", "always",
                     "flops", "time");
  const auto line = [&](const std::string& name, auto figure, std::pair<double, double> bias) {
    out += fmt::format(" {:<32}{:>8.3f}{:>8.3f}{:>8.3f}{:>16}{:>10.4f}{:>8.4f}{:>7.2f}{:>7.1f}%{:>7.1f}%{:>7.1f}%{:>6.1f}%\n", name, figure(&AuditRow::cosine),
                       figure(&AuditRow::relative_error), figure(&AuditRow::dx_relative_error), fmt::format("{:.2f} ± {:.2f}", bias.first, bias.second),
                       figure(&AuditRow::variance), figure(&AuditRow::theory_variance), figure(&AuditRow::adam_noise), 100 * figure(&AuditRow::never),
                       100 * figure(&AuditRow::always), -100 * figure(&AuditRow::flops_saved), -100 * figure(&AuditRow::time_saved));
  };
  for (const Group& g : groups(a)) {
    const AuditRow* worst = *std::max_element(g.rows.begin(), g.rows.end(), [](const AuditRow* x, const AuditRow* y) { return x->relative_error < y->relative_error; });
    line(fmt::format("{} {:.2f}, {}", g.first->policy, g.first->fraction, g.first->block), [&](auto member) { return g.mean(member); }, g.bias_ratio());
    const auto row = [&](const AuditRow* r, const char* note) {
      line(fmt::format("   {}layer {}", note, r->layer), [&](auto member) { return static_cast<double>(r->*member); }, {r->bias_ratio, r->bias_ratio_error});
    };
    if (all)
      for (const AuditRow* r : g.rows) row(r, "");
    else if (g.rows.size() > 1)
      row(worst, "worst: ");
  }
  out += " error: root mean square of |approximate - exact| / |exact|, for the matrices and for dx. bias ratio: 1 = unbiased, draws = deterministic.\n"
         " variance against theory: sum of (1/p - 1) |G|^2 over |G|^2; for greedy what it drops. Adam: error over the variation between batches.\n"
         " never, always: components selected with mean probability < 2 %, > 98 %. flops, time: of the block against exact rematerialization.";
  return out;
}

std::string audit_svg(const AuditResult& a) {
  const std::vector<Group> rows = groups(a);
  std::int64_t layers = 0;
  for (const AuditRow& r : a.rows) layers = std::max(layers, r.layer + 1);
  const double left = 190, top = 74, cell_h = 26, cell_w = std::clamp(900.0 / static_cast<double>(layers), 30.0, 64.0);
  const double width = left + cell_w * static_cast<double>(layers) + 20, height = top + cell_h * static_cast<double>(rows.size()) + 62;
  std::string out = svg::open(std::max(width, 640.0), height);
  out += svg::text(16, 24, "ink", "Relative error of each block's gradient", 15);
  out += svg::text(16, 44, "soft", fmt::format("weights {}, {} batches of {} x {} tokens, one draw, {}", a.weights, a.batches, a.sequences, a.tokens, a.precision));
  double most = 0.05;
  for (const AuditRow& r : a.rows) most = std::max(most, r.relative_error);
  // From pale to dark red; text turns light on dark cells.
  const auto shade = [&](double error) { return std::clamp(error / most, 0.0, 1.0); };
  const auto colour = [](double s) {
    const auto mix = [&](int from, int to) { return static_cast<int>(std::lround(from + (to - from) * s)); };
    return fmt::format("#{:02x}{:02x}{:02x}", mix(0xf5, 0x8c), mix(0xf1, 0x1c), mix(0xe6, 0x2b));
  };
  for (std::int64_t l = 0; l < layers; ++l) out += svg::text(left + cell_w * (static_cast<double>(l) + 0.5), top - 8, "soft", std::to_string(l), 11, "middle");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double y = top + cell_h * static_cast<double>(i);
    out += svg::text(left - 10, y + 17, "ink", fmt::format("{} {:.2f}, {}", rows[i].first->policy, rows[i].first->fraction, rows[i].first->block), 12, "end");
    for (const AuditRow* r : rows[i].rows) {
      const double x = left + cell_w * static_cast<double>(r->layer), s = shade(r->relative_error);
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>layer {} {}: error {:.3f}, cosine {:.3f}, bias ratio {:.2f}</title></rect>\n",
                         x, y, cell_w - 1.5, cell_h - 1.5, colour(s), r->layer, r->block, r->relative_error, r->cosine, r->bias_ratio);
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" text-anchor=\"middle\" fill=\"{}\">{:.2f}</text>\n", x + cell_w / 2 - 0.7, y + 17,
                         s > 0.6 ? "#ffffff" : "#2a1a14", r->relative_error);
    }
  }
  const double y = top + cell_h * static_cast<double>(rows.size()) + 22;
  out += svg::text(left, y, "soft", "layer →", 11);
  out += svg::text(16, y + 18, "soft", "pale: close to the exact gradient; dark: far from it. 0.50: the difference is half as long as the gradient", 11);
  return out + "</svg>\n";
}

}  // namespace relume
