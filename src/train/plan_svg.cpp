#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart.h"
#include "relume/base/units.h"
#include "relume/train/plan_report.h"

namespace relume {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

constexpr double kWidth = 1080, kLeft = 78, kRight = 18, kTop = 74, kPlotHeight = 300, kStripTop = kTop + kPlotHeight + 54, kCell = 15,
                 kArenaTop = kStripTop + 2 * kCell + 106, kArenaHeight = 240, kHeight = kArenaTop + kArenaHeight + 28;

// From the bottom of the stack: state in blues, then what lives in the arena.
constexpr const char* kStateColours[] = {"#24527a", "#33699b", "#4a84b8", "#6f9fcb", "#9fbfdd", "#c7d9ea"};
constexpr const char* kCategoryColours[kCategoryCount] = {"#3f9463", "#86c5a0", "#e08a3c", "#8f63c7", "#d6639c", "#9299a3"};

const char* policy_colour(const std::string& policy) {
  if (policy.starts_with("store")) return "#3f9463";
  if (policy.starts_with("selective")) return "#86c5a0";
  if (policy.starts_with("exact")) return "#e08a3c";
  if (policy.starts_with("greedy")) return "#b5443c";
  if (policy.starts_with("sketch")) return "#2b8fa3";
  return "#9299a3";
}

/// A step from 1, 2, 5 times a power of two of bytes that gives about five lines.
double byte_step(double most) {
  for (double unit = 1; unit < 1e15; unit *= 1024)
    for (double m : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0})
      if (most / (m * unit) <= 6) return m * unit;
  return most;
}

class Drawing {
 public:
  explicit Drawing(const PlanReport& r) : r_(r) {
    x_.push_back(kLeft);
    double total = 0;
    for (const auto& t : r.ticks) total += t.seconds;
    for (const auto& t : r.ticks) x_.push_back(x_.back() + t.seconds / total * (kWidth - kLeft - kRight));
    most_ = static_cast<double>(r.peak_bytes()) * 1.06;
    if (r.budget && static_cast<double>(r.budget->budget_bytes) < 2 * most_) most_ = std::max(most_, 1.03 * static_cast<double>(r.budget->budget_bytes));
  }

  std::string draw() {
    out_ = svg::open(kWidth, kHeight);
    text(kLeft, 20, "ink", "Planned memory of one micro-batch and the update", 15);
    text(kLeft, 38, "soft", r_.title);
    text(kLeft, 54, "soft", r_.device);
    axis();
    areas();
    phases();
    lines();
    peak();
    strip();
    legend(kStripTop + 2 * kCell + 40);
    arena();
    return out_ + "</svg>\n";
  }

 private:
  [[nodiscard]] double y(double bytes) const { return kTop + kPlotHeight * (1 - bytes / most_); }

  void text(double x, double y, const char* css, const std::string& what, int size = 12, const char* anchor = "start") {
    out_ += svg::text(x, y, css, what, size, anchor);
  }

  void axis() {
    const double step = byte_step(most_);
    for (double b = 0; b <= most_; b += step) {
      out_ += fmt::format("<line class=\"line\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft, kWidth - kRight, y(b), y(b));
      text(kLeft - 8, y(b) + 4, "soft", b == 0 ? "0" : format_bytes(static_cast<std::int64_t>(b)), 11, "end");
    }
  }

  /// One stacked layer: its bytes in each tick lie on `base`, which grows by them.
  void area(std::vector<double>& base, const std::vector<double>& bytes, const std::string& colour, const std::string& title) {
    std::string top, bottom;
    for (std::size_t t = 0; t < bytes.size(); ++t) {
      top += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", x_[t], y(base[t] + bytes[t]), x_[t + 1], y(base[t] + bytes[t]));
      bottom = fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", x_[t + 1], y(base[t]), x_[t], y(base[t])) + bottom;
      base[t] += bytes[t];
    }
    out_ += fmt::format("<polygon fill=\"{}\" points=\"{}{}\"><title>{}</title></polygon>\n", colour, top, bottom, svg::escape(title));
  }

  void areas() {
    std::vector<double> base(r_.ticks.size(), 0.0);
    for (std::size_t i = 0; i < r_.persistent.size(); ++i)
      area(base, std::vector<double>(r_.ticks.size(), static_cast<double>(r_.persistent[i].bytes)), kStateColours[std::min<std::size_t>(i, 5)],
           r_.persistent[i].name + ": " + format_bytes(r_.persistent[i].bytes));
    for (int c = 0; c < kCategoryCount; ++c) {
      std::vector<double> bytes;
      for (const auto& t : r_.ticks) bytes.push_back(static_cast<double>(t.bytes[at(c)]));
      area(base, bytes, kCategoryColours[c],
           fmt::format("{}: at most {}", to_string(static_cast<Category>(c)), format_bytes(static_cast<std::int64_t>(*std::max_element(bytes.begin(), bytes.end())))));
    }
    for (std::size_t t = 0; t < r_.ticks.size(); ++t)  // hover anywhere: the node and what is live
      out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"transparent\"><title>{}: {}</title></rect>\n", x_[t], kTop,
                          std::max(0.1, x_[t + 1] - x_[t]), kPlotHeight, svg::escape(r_.ticks[t].label), format_bytes(static_cast<std::int64_t>(base[t])));
  }

  [[nodiscard]] const char* phase_of(std::size_t t) const {
    const auto& tick = r_.ticks[t];
    if (tick.phase == Phase::kUpdate) return "update";
    if (tick.phase == Phase::kBackward) return "backward";
    return tick.layer < 0 && t > 0 ? "head" : "forward";
  }

  void phases() {
    const double line = kTop + kPlotHeight + 12;
    for (std::size_t t = 0; t < r_.ticks.size();) {
      std::size_t end = t + 1;
      while (end < r_.ticks.size() && std::string_view(phase_of(end)) == phase_of(t)) ++end;
      out_ += fmt::format("<line class=\"line\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\" stroke-width=\"3\"/>\n", x_[t] + 1, x_[end] - 1, line, line);
      if (x_[end] - x_[t] > 40) text((x_[t] + x_[end]) / 2, line + 17, "soft", phase_of(t), 12, "middle");
      t = end;
    }
    text(kWidth - kRight, kTop + kPlotHeight + 42, "soft", "time (predicted) →", 11, "end");
  }

  /// The budget, and what a run measured.
  void lines() {
    const auto line = [&](std::int64_t bytes, const char* colour, const std::string& label, double x, const char* anchor) {
      if (bytes <= 0) return;
      const double at_y = y(std::min(static_cast<double>(bytes), most_));
      out_ += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"1.5\" stroke-dasharray=\"6 4\"><title>{}</title></line>\n",
                          kLeft, kWidth - kRight, at_y, at_y, colour, svg::escape(label));
      text(x, at_y - 5, "ink", label + (static_cast<double>(bytes) > most_ ? " (above this picture)" : ""), 12, anchor);
    };
    if (r_.budget) line(r_.budget->budget_bytes, "#d23b3b", "budget " + format_bytes(r_.budget->budget_bytes), kLeft + 4, "start");
    line(r_.measured_bytes, "#1f9fb0", "measured: " + format_bytes(r_.measured_bytes) + " touched", kWidth - kRight - 4, "end");
  }

  void peak() {
    double best = 0;
    std::size_t tick = 0;
    for (std::size_t t = 0; t < r_.ticks.size(); ++t) {
      double sum = 0;
      for (std::int64_t b : r_.ticks[t].bytes) sum += static_cast<double>(b);
      if (sum > best) {
        best = sum;
        tick = t;
      }
    }
    const double bytes = best + static_cast<double>(r_.persistent_bytes), x = (x_[tick] + x_[tick + 1]) / 2;
    out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#d23b3b\"/>\n", x, y(bytes));
    const bool right = x > kWidth / 2;
    text(x + (right ? -8 : 8), y(bytes) - 6, "ink", fmt::format("peak {} at {}", format_bytes(static_cast<std::int64_t>(bytes)), r_.peak_node), 12, right ? "end" : "start");
  }

  void strip() {
    const double cell = std::min(36.0, (kWidth - kLeft - kRight) / static_cast<double>(r_.layers.size()));
    text(kLeft - 8, kStripTop + 11, "soft", "attention", 11, "end");
    text(kLeft - 8, kStripTop + kCell + 11, "soft", "ffn", 11, "end");
    for (std::size_t l = 0; l < r_.layers.size(); ++l) {
      const auto& layer = r_.layers[l];
      for (int row = 0; row < 2; ++row) {
        const std::string& policy = row == 0 ? layer.attention : layer.ffn;
        out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>layer {} {}: {}; the layer saves {}</title></rect>\n",
                            kLeft + cell * static_cast<double>(l), kStripTop + kCell * row, cell - 1.5, kCell - 1.5, policy_colour(policy), l,
                            row == 0 ? "attention" : "ffn", svg::escape(policy), format_bytes(layer.saved_bytes));
      }
    }
    double x = kLeft;
    const double y_text = kStripTop + 2 * kCell + 14;
    text(x, y_text, "soft", fmt::format("policy of layers 0-{}:", r_.layers.size() - 1), 11);
    x += 140;
    for (const char* name : {"store", "selective", "exact", "greedy", "sketch"}) x = key(x, y_text, policy_colour(name), name);
  }

  double key(double x, double y_text, const char* colour, const std::string& name) {
    out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", x, y_text - 9, colour);
    text(x + 14, y_text, "soft", name, 11);
    return x + 14 + 6.3 * static_cast<double>(name.size()) + 16;
  }

  void legend(double y_text) {
    double x = kLeft;
    for (std::size_t i = 0; i < r_.persistent.size(); ++i) x = key(x, y_text, kStateColours[std::min<std::size_t>(i, 5)], r_.persistent[i].name);
    x = kLeft;
    for (int c = 0; c < kCategoryCount; ++c) x = key(x, y_text + 18, kCategoryColours[c], std::string(to_string(static_cast<Category>(c))));
  }

  /// Address over time: every buffer of the arena where it lies.
  void arena() {
    text(kLeft, kArenaTop - 12, "ink", fmt::format("Addresses in the arena of {}", format_bytes(r_.arena_bytes)), 13);
    const double most = static_cast<double>(std::max<std::int64_t>(r_.arena_bytes, 1));
    const auto height_of = [&](double bytes) { return kArenaHeight * bytes / most; };
    const double step = byte_step(most);
    for (double b = 0; b <= most; b += step) {
      const double at_y = kArenaTop + kArenaHeight - height_of(b);
      out_ += fmt::format("<line class=\"line\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft, kWidth - kRight, at_y, at_y);
      text(kLeft - 8, at_y + 4, "soft", b == 0 ? "0" : format_bytes(static_cast<std::int64_t>(b)), 11, "end");
    }
    for (const PlanReport::Rectangle& b : r_.rectangles)
      out_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}: {} at {}</title></rect>\n", x_[at(b.begin)],
                          kArenaTop + kArenaHeight - height_of(static_cast<double>(b.offset + b.bytes)), std::max(0.3, x_[at(b.end)] - x_[at(b.begin)]),
                          std::max(0.3, height_of(static_cast<double>(b.bytes)) - 0.3), kCategoryColours[static_cast<std::size_t>(b.category)], svg::escape(b.label),
                          format_bytes(b.bytes), format_bytes(b.offset));
    text(kWidth - kRight, kArenaTop + kArenaHeight + 16, "soft", "time (predicted) →", 11, "end");
  }

  const PlanReport& r_;
  std::vector<double> x_;
  double most_ = 1;
  std::string out_;
};

}  // namespace

std::string plan_svg(const PlanReport& report) { return Drawing(report).draw(); }

}  // namespace relume
