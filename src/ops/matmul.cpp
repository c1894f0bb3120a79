// One op for every matrix product: c = op(a) op(b) [+ residual], or added into an accumulator.
#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

struct MatmulAttributes {
  bool transpose_a, transpose_b;
  bool accumulation = false;  ///< the result has the accumulation dtype: gradients of weights
};

enum Input { kA, kB, kResidual, kInto };

std::vector<OutputSpec> infer(const InferContext& c) {
  c.require_rank(kA, "a", 2);
  c.require_rank(kB, "b", 2);
  c.require_floating(kA, "a");
  c.require_dtype(kB, "b", c.dtype(kA));
  const auto [ta, tb, accumulation] = c.attributes<MatmulAttributes>();
  const std::int64_t m = c.shape(kA)[ta ? 1 : 0], depth = c.shape(kA)[ta ? 0 : 1], n = c.shape(kB)[tb ? 0 : 1];
  const std::int64_t depth_b = c.shape(kB)[tb ? 1 : 0];
  c.require(depth == depth_b, fmt::format("inner extents must agree; a {}{} has {}, b {}{} has {}", c.shape(kA).to_string(),
                                          ta ? " transposed" : "", depth, c.shape(kB).to_string(), tb ? " transposed" : "", depth_b));
  if (c.has(kResidual)) c.require_shape(kResidual, "residual", {m, n});
  if (!c.has(kInto)) return {{.shape = {m, n}, .dtype = accumulation ? accumulation_dtype(c.dtype(kA)) : c.dtype(kA)}};
  c.require_shape(kInto, "accumulator", {m, n});
  c.require_dtype(kInto, "accumulator", accumulation_dtype(c.dtype(kA)));
  return {{.shape = {m, n}, .dtype = c.dtype(kInto), .alias = kInto}};
}

Tensor matmul(Tensor a, Tensor b, bool transpose_a, bool transpose_b, Tensor residual = {}) {
  return a.tape->emit(kMatmul, {a, b, residual}, MatmulAttributes{transpose_a, transpose_b})[0];
}

/// The gradient of operand `which` is x^T y: added into its accumulator if it is a parameter.
void add_weight_gradient(Vjp& r, int which, Tensor x, Tensor y) {
  const Tensor into = r.accumulator(which);
  const Tensor gradient = r.tape().emit(kMatmul, {x, y, {}, into}, MatmulAttributes{true, false, true})[0];
  if (into)
    r.set_accumulator(which, gradient);
  else
    r.add(which, gradient);
}

void vjp(Vjp& r) {
  const auto [ta, tb, accumulation] = r.attributes<MatmulAttributes>();
  const Tensor dc = r.dout(0);
  if (r.has_in(kResidual)) r.add(kResidual, dc);
  if (tb)
    add_weight_gradient(r, kB, dc, r.in(kA));
  else
    add_weight_gradient(r, kB, r.in(kA), dc);
  r.add(kA, matmul(dc, r.in(kB), false, !tb));
}

MatmulArgs args(const NodeContext& n) {
  const auto& [ta, tb, accumulation] = n.attributes<MatmulAttributes>();
  const auto optional = [&](std::size_t i) { return n.in.size() > i ? n.in[i] : TensorView{}; };
  return {n.in[kA], n.in[kB], n.out[0], optional(kResidual), ta, tb, optional(kInto).shape.rank() > 0, n.workspace};
}

Cost cost(const NodeContext& n) {
  const MatmulArgs a = args(n);
  const double depth = static_cast<double>(a.transpose_a ? a.a.shape[0] : a.a.shape[1]);
  return {.flops = 2 * static_cast<double>(a.c.shape.elements()) * depth,
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.matmul.workspace_bytes(a),
          .engine = Engine::kMatmul};
}

void run(const NodeContext& n) { n.kernels.matmul.run(args(n), n.stream); }

}  // namespace

const OpDef kMatmul{"matmul", infer, vjp, cost, run};

std::string_view matmul_form(const std::any& attributes) {
  const auto& a = std::any_cast<const MatmulAttributes&>(attributes);
  return a.transpose_a ? "tn" : a.transpose_b ? "nt" : "nn";
}

Tensor linear(Tensor x, Tensor weight) { return matmul(x, weight, false, true); }
Tensor add_linear(Tensor x, Tensor weight, Tensor into) {
  return x.tape->emit(kMatmul, {x, weight, {}, into}, MatmulAttributes{false, true, true})[0];
}
Tensor project(Tensor x, Tensor weight, Tensor residual) { return matmul(x, weight, false, false, residual); }

}  // namespace relume
