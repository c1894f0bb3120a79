// How components are chosen: probabilities by water-filling with a floor, and a systematic draw in integers.
// Pure functions on the caller's memory, shared by kernels, the audit and the tests.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "relume/base/device.h"

namespace relume {

constexpr std::uint64_t kDrawUnit = std::uint64_t{1} << 24;  // probabilities are integers in units of 2^-24

template <class T>
RELUME_DEVICE inline bool is_bad_score(T score) {
  return !(score >= 0) || score > std::numeric_limits<T>::max();
}

/// P(j) for a water level c: min(1, max(floor, c score / largest)). A zero score counts as 1e-12 of the largest, so that k
/// can always be spent and no component becomes impossible; all zero gives every component the same.
template <class T>
RELUME_DEVICE inline double filled_probability(double level, T score, double largest, double floor) {
  const double relative = largest > 0 ? fmax(static_cast<double>(score) / largest, 1e-12) : 1.0;
  return fmin(1.0, fmax(floor, level * relative));
}

/// A probability in units of 2^-24, in [1, 2^24].
RELUME_DEVICE inline std::int32_t drawn_units(double probability) {
  const auto unit = static_cast<std::int64_t>(kDrawUnit), rounded = static_cast<std::int64_t>(probability * static_cast<double>(unit) + 0.5);
  return static_cast<std::int32_t>(rounded < 1 ? 1 : rounded > unit ? unit : rounded);
}

/// Gives `residue` units (what rounding left over, or took too much) to uncertain components in index order; to certain ones
/// (weight exactly 1) only when nothing else is left.
RELUME_DEVICE inline void spread_residue(std::int32_t* probabilities, std::int64_t n, std::int64_t residue) {
  const auto unit = static_cast<std::int64_t>(kDrawUnit);
  const std::int32_t sign = residue > 0 ? 1 : -1;
  for (bool certain_too = false; residue != 0; certain_too = true)
    for (bool progress = true; progress && residue != 0;) {
      progress = false;
      for (std::int64_t j = 0; j < n && residue != 0; ++j) {
        std::int32_t& p = probabilities[j];
        const bool can = sign > 0 ? p < unit : p > 1 && (certain_too || p < unit);
        if (!can) continue;
        p += sign;
        residue -= sign;
        progress = true;
      }
    }
}

/// Water-filled inclusion probabilities with sum exactly k, in units of 2^-24: probabilities[j] in [1, 2^24].
/// Needs n * floor <= k <= n and finite scores >= 0. Same scores give the same integers on any device.
/// Cost: 100 passes over n.
template <class T>
inline void water_fill(const T* scores, std::int64_t n, std::int64_t k, double floor, std::int32_t* probabilities) {
  double largest = 0;
  for (std::int64_t j = 0; j < n; ++j) largest = std::fmax(largest, static_cast<double>(scores[j]));
  // At `low` no probability exceeds k / n, at `high` every one is 1; the sum is monotone between.
  double low = static_cast<double>(k) / static_cast<double>(n), high = 1e12;
  for (int i = 0; i < 100; ++i) {
    const double middle = std::sqrt(low * high);
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += filled_probability(middle, scores[j], largest, floor);
    (sum < static_cast<double>(k) ? low : high) = middle;
  }
  std::int64_t residue = k * static_cast<std::int64_t>(kDrawUnit);
  for (std::int64_t j = 0; j < n; ++j) {
    probabilities[j] = drawn_units(filled_probability(low, scores[j], largest, floor));
    residue -= probabilities[j];
  }
  spread_residue(probabilities, n, residue);
}

/// Systematic draw: component j is taken when a multiple of 2^24 lies in (C(j-1) + offset, C(j) + offset], C the prefix
/// sums. Exactly k are taken, component j with probability P(j) / 2^24 over a uniform offset; its weight is 2^24 / P(j).
template <class T>
inline void systematic_draw(const std::int32_t* probabilities, std::int64_t n, std::int64_t k, std::uint64_t offset,
                            std::int32_t* indices, T* weights) {
  std::uint64_t sum = offset % kDrawUnit;
  std::int64_t taken = 0;
  for (std::int64_t j = 0; j < n && taken < k; ++j) {
    const std::uint64_t before = sum;
    sum += static_cast<std::uint64_t>(probabilities[j]);
    if (sum / kDrawUnit == before / kDrawUnit) continue;
    indices[taken] = static_cast<std::int32_t>(j);
    weights[taken] = static_cast<T>(static_cast<double>(kDrawUnit) / static_cast<double>(probabilities[j]));
    ++taken;
  }
}

/// Offset of micro-batch m of M: marginally uniform, and over the M draws component j is used floor(M p) or ceil(M p) times
/// when all share the same probabilities.
RELUME_DEVICE constexpr std::uint64_t coordinated_offset(std::uint64_t first, std::uint64_t m, std::uint64_t count) {
  return (first + m * kDrawUnit / count) % kDrawUnit;
}

}  // namespace relume
