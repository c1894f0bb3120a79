// A pseudo-random order of 0..n-1 with random access and no memory.
#pragma once
#include <cstdint>

#include "relume/base/philox.h"

namespace relume {

/// Position i of the permutation of [0, n) chosen by `key`: a four-round Feistel network on the next even power of two, walked
/// until it lands inside (fewer than four steps on average).
constexpr std::int64_t permute(std::int64_t i, std::int64_t n, std::uint64_t key) {
  int half_bits = 1;
  while ((std::int64_t{1} << (2 * half_bits)) < n) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t x = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = x >> half_bits, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (philox(key, right, round).word[0] & mask);
      left = right;
      right = mixed;
    }
    x = left << half_bits | right;
  } while (x >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(x);
}

}  // namespace relume
