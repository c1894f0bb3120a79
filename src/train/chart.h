// Small pictures as SVG text: what the plan's drawing and the run report share.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace relume::svg {

[[nodiscard]] std::string escape(const std::string& text);
/// Style sheet of all pictures: classes ink, soft, line, page, readable in light and dark.
[[nodiscard]] std::string style();
/// An opening <svg> element with the style and a background; the caller closes it.
[[nodiscard]] std::string open(double width, double height);
[[nodiscard]] std::string text(double x, double y, const char* css, const std::string& what, int size = 12, const char* anchor = "start");
/// Round steps from 1, 2, 5 that give at most `lines` grid lines up to `most`.
[[nodiscard]] double axis_step(double most, int lines);

struct Series {
  std::string name;
  std::string colour;
  std::vector<std::pair<double, double>> points;  ///< x ascending; a point that is not finite interrupts the line
  bool markers = false;                           ///< a dot with a hover title for every point
};

/// A line chart with axes and a legend. Zero is on the y axis only if `from_zero`.
struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool from_zero = false;
  double width = 540, height = 260;
};
[[nodiscard]] std::string draw(const Chart& chart);

/// The colour of the i-th of several runs or curves.
[[nodiscard]] const char* series_colour(std::size_t i);

}  // namespace relume::svg
