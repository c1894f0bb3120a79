#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

enum Input { kQkv, kState, kCache };

std::vector<OutputSpec> infer(const InferContext& c) {
  const auto& l = c.attributes<AttentionLayout>();
  c.require_floating(kQkv, "qkv");
  c.require(l.kv_heads > 0 && l.heads % l.kv_heads == 0, fmt::format("heads must be a multiple of kv_heads, got {} and {}", l.heads, l.kv_heads));
  c.require(l.head_dim <= kMostHeadDim, fmt::format("head_dim must be at most {}, got {}", kMostHeadDim, l.head_dim));
  c.require_shape(kQkv, "qkv", {l.tokens, (l.heads + 2 * l.kv_heads) * l.head_dim});
  c.require_rank(kCache, "cache", 2);
  c.require_shape(kCache, "cache", {c.shape(kCache)[0], 2 * l.kv_heads * l.head_dim});
  c.require_dtype(kCache, "cache", c.dtype(kQkv));
  return {{.shape = {l.tokens, l.heads * l.head_dim}, .dtype = c.dtype(kQkv)}, {.shape = c.shape(kCache), .dtype = c.dtype(kCache), .alias = kCache}};
}

/// As if the cache were full.
Cost cost(const NodeContext& n) {
  const auto& l = n.attributes<AttentionLayout>();
  return {.flops = 4 * static_cast<double>(l.tokens * l.heads * l.head_dim * n.in[kCache].shape[0]),
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .engine = Engine::kAttention};
}

void run(const NodeContext& n) {
  n.kernels.cached_attention.run({n.in[kQkv], n.in[kState], n.in[kCache], n.out[0], n.attributes<AttentionLayout>()}, n.stream);
}

}  // namespace

const OpDef kCachedAttention{"cached_attention", infer, nullptr, cost, run};

Tensor cached_attention(Tensor qkv, Tensor state, Tensor cache, const AttentionLayout& layout) {
  return qkv.tape->emit(kCachedAttention, {qkv, state, cache}, layout)[0];
}

}  // namespace relume
