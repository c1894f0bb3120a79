// Attention to a key-value cache: the definition, one query and head at a time. Generation spends its time reading weights, not here.
#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

void cached_attention(const CachedAttentionArgs& args, Stream) {
  for_dtype(args.qkv.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    constexpr std::int64_t kKeys = 64;  // scored at a time
    const AttentionLayout& l = args.layout;
    const std::int64_t position = args.state.as<StepState>()->position, context = args.cache.shape[0], kv = l.kv_heads * l.head_dim;
    const std::int64_t columns = l.heads * l.head_dim + 2 * kv;
    const std::int64_t rows = position + l.tokens <= context ? l.tokens : position < context ? context - position : 0;
    for (std::int64_t t = 0; t < rows; ++t)
      std::memcpy(args.cache.as<T>() + (position + t) * 2 * kv, args.qkv.as<T>() + t * columns + l.heads * l.head_dim, static_cast<std::size_t>(2 * kv) * sizeof(T));
    const A scale = A(1) / std::sqrt(static_cast<A>(l.head_dim));
#pragma omp parallel for schedule(static)
    for (std::int64_t task = 0; task < l.tokens * l.heads; ++task) {
      const std::int64_t t = task / l.heads, h = task % l.heads;
      T* out = args.out.as<T>() + t * l.heads * l.head_dim + h * l.head_dim;
      A sum[kMostHeadDim] = {}, score[kKeys];
      const T* q = args.qkv.as<T>() + t * columns + h * l.head_dim;
      const T* keys = args.cache.as<T>() + h / (l.heads / l.kv_heads) * l.head_dim;
      A maximum = -INFINITY, total = 0;
      const std::int64_t seen = t < rows ? position + t + 1 : 0;
      for (std::int64_t first = 0; first < seen; first += kKeys) {
        const std::int64_t count = seen - first < kKeys ? seen - first : kKeys;
        A most = maximum;
        for (std::int64_t j = 0; j < count; ++j) {
          const T* k = keys + (first + j) * 2 * kv;
          A dot = 0;
#pragma omp simd reduction(+ : dot)
          for (std::int64_t d = 0; d < l.head_dim; ++d) dot += A(q[d]) * A(k[d]);
          score[j] = dot * scale;
          most = score[j] > most ? score[j] : most;
        }
        const A shrink = first == 0 ? A(0) : exponential(maximum - most);
        total *= shrink;
        for (std::int64_t d = 0; d < l.head_dim; ++d) sum[d] *= shrink;
        maximum = most;
        for (std::int64_t j = 0; j < count; ++j) {
          const A p = exponential(score[j] - maximum);
          const T* v = keys + (first + j) * 2 * kv + kv;
          total += p;
#pragma omp simd
          for (std::int64_t d = 0; d < l.head_dim; ++d) sum[d] += p * A(v[d]);
        }
      }
      for (std::int64_t d = 0; d < l.head_dim; ++d) put(out[d], seen > 0 ? sum[d] / total : A(0));
    }
  });
}

}  // namespace relume::cpu::RELUME_ISA
