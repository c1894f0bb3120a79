// Static offsets for buffers with known lifetimes (dynamic storage allocation). Pure: no tape, no device.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace relume {

constexpr std::int64_t kAlignment = 256;  // of every offset in the arena; what CUDA kernels want

constexpr std::int64_t align_up(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Live in the half-open range of ticks [begin, end); one tick is one node.
struct Lifetime {
  std::int64_t bytes = 0;
  int begin = 0, end = 0;
};

struct LiveBytes {
  std::int64_t bytes = 0;
  int tick = 0;
};

/// The most aligned bytes live in one tick, and the first such tick: no placement needs less.
[[nodiscard]] LiveBytes max_live(std::span<const Lifetime> lifetimes);

struct Placement {
  std::vector<std::int64_t> offsets;
  std::int64_t arena_bytes = 0;
};

/// Offsets such that buffers that overlap in time do not overlap in address. Bottom-up: always the buffer whose lowest
/// feasible offset is smallest, ties by size times lifetime, busiest tick, lifetime in turn; random-key restarts of
/// lowest-fit only if none of these reaches the lower bound (on training steps the first does).
/// Cost: O(n k log n), k = buffers alive together; 1000 buffers in milliseconds. Deterministic.
[[nodiscard]] Placement place(std::span<const Lifetime> lifetimes);

/// Independent check of a placement: a pair that overlaps in time and in address, if any.
[[nodiscard]] std::optional<std::pair<int, int>> find_overlap(std::span<const Lifetime> lifetimes,
                                                              std::span<const std::int64_t> offsets);

}  // namespace relume
