// What the attention kernels share: where heads are, and tiles of kTile queries by kTile keys.
#pragma once
#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

constexpr std::int64_t kTile = 64;

RELUME_INLINE std::int64_t at_most(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <class T>
RELUME_INLINE void zero(T* p, std::int64_t n) {
  std::memset(p, 0, static_cast<std::size_t>(n) * sizeof(T));
}

/// Element offsets of a head. Rows of qkv and of out are `stride` and `out_stride` elements apart.
struct Head {
  std::int64_t q, k, v, out, lse, stride, out_stride;
};

RELUME_INLINE Head head_of(const AttentionLayout& l, std::int64_t sequence, std::int64_t head) {
  const std::int64_t group = head / (l.heads / l.kv_heads), columns = (l.heads + 2 * l.kv_heads) * l.head_dim;
  const std::int64_t first = sequence * l.tokens;
  return {first * columns + head * l.head_dim,
          first * columns + (l.heads + group) * l.head_dim,
          first * columns + (l.heads + l.kv_heads + group) * l.head_dim,
          first * l.heads * l.head_dim + head * l.head_dim,
          (sequence * l.heads + head) * l.tokens,
          columns,
          l.heads * l.head_dim};
}

#if defined(__AVX512BF16__)
// bf16 tiles (attention_bf16.cpp).
void attention_bf16(const AttentionArgs&);
std::int64_t attention_bf16_workspace(const AttentionLayout&);
void attention_bf16_gradient(const AttentionGradientArgs&);
std::int64_t attention_bf16_gradient_workspace(const AttentionLayout&);
#endif

}  // namespace relume::cpu::RELUME_ISA
