#include <fmt/format.h>

#include "relume/base/check.h"
#include "relume/ops/ops.h"

namespace relume {

namespace {

struct RmsNormAttributes {
  double eps;
};

std::vector<OutputSpec> infer(const InferContext& c) {
  c.require_rank(0, "x", 2);
  c.require_floating(0, "x");
  c.require_shape(1, "weight", {c.shape(0)[1]});
  c.require_dtype(1, "weight", accumulation_dtype(c.dtype(0)));
  const double eps = c.attributes<RmsNormAttributes>().eps;
  c.require(eps > 0, fmt::format("eps must be positive, got {}", eps));
  return {{.shape = c.shape(0), .dtype = c.dtype(0)}, {.shape = {c.shape(0)[0]}, .dtype = accumulation_dtype(c.dtype(0))}};
}

// Inputs of the gradient: x, weight, rstd, dy, residual (what is already known of dx; may be absent), accumulator of dweight.
void vjp(Vjp& r) {
  const Tensor into = r.accumulator(1), residual = r.take_gradient(0);
  CHECK(into);
  const auto d = r.tape().emit(kRmsNormGradient, {r.in(0), r.in(1), r.out(1), r.dout(0), residual, into});
  r.add(0, d[0]);
  r.set_accumulator(1, d[1]);
}

Cost cost(const NodeContext& n) {
  return {.flops = 4.0 * static_cast<double>(n.in[0].shape.elements()), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run(const NodeContext& n) {
  n.kernels.rms_norm.run({n.in[0], n.in[1], n.out[0], n.out[1], n.attributes<RmsNormAttributes>().eps}, n.stream);
}

std::vector<OutputSpec> infer_gradient(const InferContext& c) {
  c.require_shape(3, "dy", c.shape(0));
  if (c.has(4)) c.require_shape(4, "residual", c.shape(0));
  c.require_shape(5, "dweight", c.shape(1));
  return {{.shape = c.shape(0), .dtype = c.dtype(0), .may_alias = c.has(4) ? 4 : 3},
          {.shape = c.shape(5), .dtype = c.dtype(5), .alias = 5}};
}

RmsNormGradientArgs gradient_args(const NodeContext& n) {
  return {n.in[0], n.in[1], n.in[2], n.in[3], n.in[4], n.out[0], n.out[1], n.workspace};
}

Cost cost_gradient(const NodeContext& n) {
  return {.flops = 10.0 * static_cast<double>(n.in[0].shape.elements()),
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.rms_norm_gradient.workspace_bytes(gradient_args(n))};
}

void run_gradient(const NodeContext& n) { n.kernels.rms_norm_gradient.run(gradient_args(n), n.stream); }

}  // namespace

const OpDef kRmsNorm{"rms_norm", infer, vjp, cost, run};
const OpDef kRmsNormGradient{"rms_norm_gradient", infer_gradient, nullptr, cost_gradient, run_gradient};

Tensor rms_norm(Tensor x, Tensor weight, double eps) {
  const auto out = x.tape->emit(kRmsNorm, {x, weight}, RmsNormAttributes{eps});
  x.tape->name(out[1], "rstd");
  return out[0];
}

}  // namespace relume
