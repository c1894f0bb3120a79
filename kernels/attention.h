// What the attention kernels share: where heads are, and tiles of kTile queries by kTile keys.
#pragma once
#include <omp.h>

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

/// D = dO . O of row t of a head; 0 past the end.
template <class T>
RELUME_INLINE float delta_of(const AttentionGradientArgs& args, const Head& h, std::int64_t t) {
  float delta = 0;
  if (t >= args.layout.tokens) return delta;
  const T *o = args.out.as<T>() + h.out + t * h.out_stride, *g = args.dout.as<T>() + h.out + t * h.out_stride;
#pragma omp simd reduction(+ : delta)
  for (std::int64_t d = 0; d < args.layout.head_dim; ++d) delta += float(g[d]) * float(o[d]);
  return delta;
}

/// Calls f(thread, group, for_each_head) for every sequence and KV group of `rows` rows, in parallel: `group` is its first query
/// head, for_each_head(g) calls g with every query head of the group in turn.
template <class F>
RELUME_INLINE void for_each_group(const AttentionLayout& l, std::int64_t rows, F&& f) {
  const std::int64_t tasks = rows / l.tokens * l.kv_heads, per_group = l.heads / l.kv_heads;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t sequence = task / l.kv_heads, first = task % l.kv_heads * per_group;
    f(static_cast<std::int64_t>(omp_get_thread_num()), head_of(l, sequence, first), [&](auto&& g) {
      for (std::int64_t head = first; head < first + per_group; ++head) g(head_of(l, sequence, head));
    });
  }
}

#if defined(__AVX512BF16__)
// bf16 tiles (attention_bf16.cpp).
void attention_bf16(const AttentionArgs&);
std::int64_t attention_bf16_workspace(const AttentionLayout&);
void attention_bf16_gradient(const AttentionGradientArgs&);
std::int64_t attention_bf16_gradient_workspace(const AttentionLayout&);
#endif

}  // namespace relume::cpu::RELUME_ISA
