#include "chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace relume::svg {

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

std::string style() {
  return "<style>.ink{fill:#1c2430}.soft{fill:#5b6675}.line{stroke:#c9d0d8}.page{fill:#ffffff}"
         "@media (prefers-color-scheme: dark){.ink{fill:#e6eaf0}.soft{fill:#9aa6b5}.line{stroke:#3a4452}.page{fill:#14181f}}</style>\n";
}

std::string open(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n{2}"
      "<rect class=\"page\" width=\"{0}\" height=\"{1}\"/>\n",
      width, height, style());
}

std::string text(double x, double y, const char* css, const std::string& what, int size, const char* anchor) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\">{}</text>\n", css, x, y, size, anchor, escape(what));
}

double axis_step(double most, int lines) {
  if (!(most > 0) || !std::isfinite(most)) return 1;
  const double power = std::pow(10.0, std::floor(std::log10(most / lines)));
  for (double m : {1.0, 2.0, 5.0})
    if (most / (m * power) <= lines) return m * power;
  return 10 * power;
}

const char* series_colour(std::size_t i) {
  static constexpr const char* kColours[] = {"#33699b", "#d2691e", "#3f9463", "#8f63c7", "#b5443c", "#2b8fa3", "#a08020", "#d6639c"};
  return kColours[i % std::size(kColours)];
}

namespace {

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void include(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  void settle() {
    if (low > high) low = 0, high = 1;
    if (low == high) low -= std::max(0.5, std::abs(low) * 0.01), high += std::max(0.5, std::abs(high) * 0.01);
  }
};

}  // namespace

std::string draw(const Chart& c) {
  const double left = 62, right = 14, top = 34, bottom = 44 + (c.series.size() > 1 ? 18 : 0);
  Extent x, y;
  for (const Series& s : c.series)
    for (const auto& [px, py] : s.points)
      if (std::isfinite(py)) x.include(px), y.include(py);
  if (c.from_zero) y.include(0);
  x.settle();
  y.settle();
  const double margin = c.from_zero ? 0 : 0.04 * (y.high - y.low);
  y.low -= margin;
  y.high += 0.05 * (y.high - y.low);
  const auto px = [&](double v) { return left + (v - x.low) / (x.high - x.low) * (c.width - left - right); };
  const auto py = [&](double v) { return c.height - bottom - (v - y.low) / (y.high - y.low) * (c.height - top - bottom); };
  std::string out = open(c.width, c.height) + text(left, 20, "ink", c.title, 14);
  const double y_step = axis_step(y.high - y.low, 5), x_step = axis_step(x.high - x.low, 6);
  for (double v = std::ceil(y.low / y_step) * y_step; v <= y.high; v += y_step) {
    out += fmt::format("<line class=\"line\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left, c.width - right, py(v), py(v));
    out += text(left - 6, py(v) + 4, "soft", fmt::format("{:.6g}", std::abs(v) < y_step * 1e-6 ? 0.0 : v), 11, "end");
  }
  for (double v = std::ceil(x.low / x_step) * x_step; v <= x.high + x_step * 1e-6; v += x_step)
    out += text(px(v), c.height - bottom + 16, "soft", fmt::format("{:.6g}", v), 11, "middle");
  out += text(c.width - right, c.height - bottom + 32, "soft", c.x_label, 11, "end") + text(left, c.height - bottom + 32, "soft", c.y_label, 11);
  for (const Series& s : c.series) {
    std::string path;
    bool pen = false;
    for (const auto& [vx, vy] : s.points) {
      if (std::isfinite(vy)) path += fmt::format("{}{:.1f} {:.1f} ", pen ? "L" : "M", px(vx), py(vy));
      pen = std::isfinite(vy);
    }
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"><title>{}</title></path>\n", path, s.colour,
                       escape(s.name));
    if (!s.markers) continue;
    for (const auto& [vx, vy] : s.points)
      if (std::isfinite(vy))
        out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {:.6g}, {:.6g}</title></circle>\n", px(vx), py(vy), s.colour,
                           escape(s.name), vx, vy);
  }
  if (c.series.size() > 1) {
    double at = left;
    for (const Series& s : c.series) {
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", at, c.height - 17, s.colour);
      out += text(at + 14, c.height - 8, "soft", s.name, 11);
      at += 34 + 6.2 * static_cast<double>(s.name.size());
    }
  }
  return out + "</svg>\n";
}

}  // namespace relume::svg
