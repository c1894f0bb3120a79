#include "relume/ops/ops.h"

namespace relume {

namespace {

std::vector<OutputSpec> infer(const InferContext& c) {
  c.require_floating(0, "a");
  c.require_dtype(1, "b", c.dtype(0));
  c.require_shape(1, "b", c.shape(0));
  return {{.shape = c.shape(0), .dtype = c.dtype(0), .may_alias = 0}};
}

void vjp(Vjp& r) {
  r.add(0, r.dout(0));
  r.add(1, r.dout(0));
}

Cost cost(const NodeContext& n) {
  return {.flops = static_cast<double>(n.out[0].shape.elements()), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run(const NodeContext& n) { n.kernels.add.run({n.in[0], n.in[1], n.out[0]}, n.stream); }

}  // namespace

const OpDef kAdd{"add", infer, vjp, cost, run};

Tensor add(Tensor a, Tensor b) { return a.tape->emit(kAdd, {a, b})[0]; }

}  // namespace relume
