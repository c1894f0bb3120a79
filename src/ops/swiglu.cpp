#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

std::vector<OutputSpec> infer(const InferContext& c) {
  c.require_rank(0, "gate_up", 2);
  c.require_floating(0, "gate_up");
  c.require(c.shape(0)[1] % 2 == 0, fmt::format("gate_up must have an even number of columns, got {}", c.shape(0).to_string()));
  return {{.shape = {c.shape(0)[0], c.shape(0)[1] / 2}, .dtype = c.dtype(0)}};
}

void vjp(Vjp& r) { r.add(0, r.tape().emit(kSwigluGradient, {r.in(0), r.dout(0)})[0]); }

Cost cost(const NodeContext& n) {
  return {.flops = 5.0 * static_cast<double>(n.out[0].shape.elements()), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run(const NodeContext& n) { n.kernels.swiglu.run({n.in[0], n.out[0]}, n.stream); }

std::vector<OutputSpec> infer_gradient(const InferContext& c) {
  c.require_shape(1, "dy", {c.shape(0)[0], c.shape(0)[1] / 2});
  return {{.shape = c.shape(0), .dtype = c.dtype(0), .may_alias = 0}};
}

Cost cost_gradient(const NodeContext& n) {
  return {.flops = 12.0 * static_cast<double>(n.in[1].shape.elements()), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run_gradient(const NodeContext& n) { n.kernels.swiglu_gradient.run({n.in[0], n.in[1], n.out[0]}, n.stream); }

}  // namespace

const OpDef kSwiglu{"swiglu", infer, vjp, cost, run};
const OpDef kSwigluGradient{"swiglu_gradient", infer_gradient, nullptr, cost_gradient, run_gradient};

Tensor swiglu(Tensor gate_up) { return gate_up.tape->emit(kSwiglu, {gate_up})[0]; }

}  // namespace relume
