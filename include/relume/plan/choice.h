// Which option every layer takes, so that a step is fastest within a number of bytes. Pure: no tape, no device.
//
// With P_l the bytes that layers before l save, a plan needs
//   max(elsewhere, fixed + max over l of (P_l + peak_l), fixed + P_L + head)
// bytes of arena: a knapsack whose bound holds for every prefix, since every layer's backward runs while all earlier layers
// still hold what they saved.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace relume {

/// A layer under one option.
struct LayerCost {
  std::int64_t saved_bytes = 0;  ///< kept from its forward to its backward
  std::int64_t peak_bytes = 0;   ///< most live in its forward or backward, above what earlier layers saved
  double seconds = 0;            ///< forward, recompute and backward
  double variance = 0;           ///< of approximate options: expected relative squared error of the gradient
};

struct ChoiceProblem {
  std::vector<LayerCost> options;
  std::vector<std::vector<int>> allowed;  ///< a layer -> indices into options; one index pins the layer
  std::int64_t fixed_bytes = 0;           ///< live from the first layer's forward to its backward, saved by none
  std::int64_t head_bytes = 0;            ///< most live in the head, above what layers saved
  std::int64_t elsewhere_bytes = 0;       ///< most live outside layers and head
};

struct Choice {
  std::vector<int> option;  ///< one index a layer
  double seconds = 0, variance = 0;
  std::int64_t arena_bytes = 0;
};

[[nodiscard]] std::int64_t arena_bytes(const ChoiceProblem& problem, const std::vector<int>& option);

/// The smallest arena that some choice fits, to the byte.
[[nodiscard]] std::int64_t minimum_arena(const ChoiceProblem& problem);

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

struct ChoiceLimits {
  std::int64_t arena_bytes = kUnlimited;
  double variance = std::numeric_limits<double>::infinity();  ///< of the sum over layers
  int buckets = 4096;  ///< of bytes, in which the fastest label survives; 0 = all labels, exact (costs seconds for large models)
};

/// The fastest choice within the limits; among equals the one that saves least. Layers with the same options take theirs in
/// contiguous ranges. Absent if nothing fits: exactly if the limit is below minimum_arena(), or no choice is exact enough.
/// A limit on variance is met by a Lagrange multiplier, which may miss a slightly faster choice.
/// Cost: O(layers * buckets * options); 126 layers and 10 options in 20 ms.
[[nodiscard]] std::optional<Choice> choose(const ChoiceProblem& problem, const ChoiceLimits& limits);

}  // namespace relume
