// Numbers as people read and write them. Memory: MiB = 2^20, GiB = 2^30, never "GB" for 2^30.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace relume {

/// "412 MiB", "9.25 GiB", "96 B": three significant digits.
[[nodiscard]] std::string format_bytes(std::int64_t bytes);
/// "16GiB", "1500MiB", "96B": the largest unit that says it exactly; parse_bytes() gives it back.
[[nodiscard]] std::string exact_bytes(std::int64_t bytes);
/// "16GiB", "512 MiB", "1073741824": bytes. Empty if it is no amount of memory (a unit must be B, KiB, MiB, GiB or TiB).
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);
/// "487,845,504"
[[nodiscard]] std::string format_count(std::int64_t n);
/// "0:25:10"
[[nodiscard]] std::string format_duration(double seconds);
/// The known name nearest to `name` by edit distance, if it is near enough to be meant.
template <class Names>
[[nodiscard]] std::string nearest_name(std::string_view name, const Names& known);

int edit_distance(std::string_view a, std::string_view b);

template <class Names>
std::string nearest_name(std::string_view name, const Names& known) {
  std::string best;
  int best_distance = static_cast<int>(name.size()) / 2 + 1;
  for (const auto& candidate : known)
    if (const int d = edit_distance(name, candidate); d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  return best;
}

}  // namespace relume
