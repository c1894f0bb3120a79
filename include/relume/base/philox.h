// Philox 4x32-10: random numbers as a pure function of (key, counter), the same on every device and thread count.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; constants from its table 2.
#pragma once
#include <cstdint>

#include "relume/base/device.h"

namespace relume {

struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Four random words for a 64-bit key and a 128-bit counter (low word pair first).
RELUME_DEVICE constexpr PhiloxBlock philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high = 0) {
  std::uint32_t c[4] = {static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
                        static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0], p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    const std::uint32_t next[4] = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
                                   static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

/// Mixes a name into a seed (FNV-1a), so that every named stream of random numbers is independent.
RELUME_DEVICE constexpr std::uint64_t stream_key(std::uint64_t seed, const char* name, std::uint64_t length) {
  std::uint64_t h = 0xcbf29ce484222325u ^ seed;
  for (std::uint64_t i = 0; i < length; ++i) h = (h ^ static_cast<unsigned char>(name[i])) * 0x100000001b3u;
  return h;
}

}  // namespace relume
