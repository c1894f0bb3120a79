#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

std::vector<OutputSpec> infer(const InferContext& c) {
  const auto& l = c.attributes<AttentionLayout>();
  c.require_rank(0, "qkv", 2);
  c.require_floating(0, "qkv");
  c.require(l.kv_heads > 0 && l.heads % l.kv_heads == 0,
            fmt::format("heads must be a multiple of kv_heads, got {} and {}", l.heads, l.kv_heads));
  const std::int64_t rows = c.shape(0)[0];
  c.require(l.tokens > 0 && rows % l.tokens == 0, fmt::format("rows must be whole sequences of {} tokens, got {}", l.tokens, rows));
  c.require_shape(0, "qkv", {rows, (l.heads + 2 * l.kv_heads) * l.head_dim});
  return {{.shape = {rows, l.heads * l.head_dim}, .dtype = c.dtype(0)},
          {.shape = {rows / l.tokens, l.heads, l.tokens}, .dtype = accumulation_dtype(c.dtype(0))}};
}

void vjp(Vjp& r) {
  const auto d = r.tape().emit(kAttentionGradient, {r.in(0), r.out(0), r.out(1), r.dout(0)}, r.attributes<AttentionLayout>());
  r.add(0, d[0]);
}

/// Flops of one tile product over all causal pairs.
double product_flops(const NodeContext& n) {
  const auto& l = n.attributes<AttentionLayout>();
  return static_cast<double>(n.in[0].shape[0] * l.heads * l.head_dim) * static_cast<double>(l.tokens + 1);
}

AttentionArgs args(const NodeContext& n) { return {n.in[0], n.out[0], n.out[1], n.attributes<AttentionLayout>(), n.workspace}; }

Cost cost(const NodeContext& n) {
  return {.flops = 2 * product_flops(n),
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.attention.workspace_bytes(args(n)),
          .engine = Engine::kAttention};
}

void run(const NodeContext& n) { n.kernels.attention.run(args(n), n.stream); }

std::vector<OutputSpec> infer_gradient(const InferContext& c) {
  c.require_shape(3, "dout", c.shape(1));
  return {{.shape = c.shape(0), .dtype = c.dtype(0), .may_alias = 0}};
}

AttentionGradientArgs gradient_args(const NodeContext& n) {
  return {n.in[0], n.in[1], n.in[2], n.in[3], n.out[0], n.attributes<AttentionLayout>(), n.workspace};
}

Cost cost_gradient(const NodeContext& n) {
  return {.flops = 5 * product_flops(n),
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.attention_gradient.workspace_bytes(gradient_args(n)),
          .engine = Engine::kAttention};
}

void run_gradient(const NodeContext& n) { n.kernels.attention_gradient.run(gradient_args(n), n.stream); }

}  // namespace

const OpDef kAttention{"attention", infer, vjp, cost, run};
const OpDef kAttentionGradient{"attention_gradient", infer_gradient, nullptr, cost_gradient, run_gradient};

Tensor attention(Tensor qkv, const AttentionLayout& layout) {
  const auto out = qkv.tape->emit(kAttention, {qkv}, layout);
  qkv.tape->name(out[1], "lse");
  return out[0];
}

}  // namespace relume
