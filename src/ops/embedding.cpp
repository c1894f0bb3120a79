#include "relume/base/check.h"
#include "relume/ops/ops.h"

namespace relume {

namespace {

std::vector<OutputSpec> infer(const InferContext& c) {
  c.require_rank(0, "ids", 1);
  c.require_dtype(0, "ids", DType::i32);
  c.require_rank(1, "table", 2);
  c.require_floating(1, "table");
  return {{.shape = {c.shape(0)[0], c.shape(1)[1]}, .dtype = c.dtype(1)}};
}

void vjp(Vjp& r) {
  const Tensor into = r.accumulator(1);
  CHECK(into);
  r.set_accumulator(1, r.tape().emit(kEmbeddingGradient, {r.in(0), r.dout(0), into})[0]);
}

Cost cost(const NodeContext& n) {
  return {.bytes_read = n.bytes_out() + static_cast<double>(n.in[0].bytes()), .bytes_written = n.bytes_out()};
}

void run(const NodeContext& n) { n.kernels.embedding.run({n.in[0], n.in[1], n.out[0]}, n.stream); }

std::vector<OutputSpec> infer_gradient(const InferContext& c) {
  c.require_dtype(0, "ids", DType::i32);
  c.require_shape(1, "dy", {c.shape(0)[0], c.shape(2)[1]});
  return {{.shape = c.shape(2), .dtype = c.dtype(2), .alias = 2}};
}

Cost cost_gradient(const NodeContext& n) {
  const double rows = static_cast<double>(n.in[1].bytes());
  return {.flops = static_cast<double>(n.in[1].shape.elements()), .bytes_read = 2 * rows, .bytes_written = rows};
}

void run_gradient(const NodeContext& n) { n.kernels.embedding_gradient.run({n.in[0], n.in[1], n.out[0]}, n.stream); }

}  // namespace

const OpDef kEmbedding{"embedding", infer, vjp, cost, run};
const OpDef kEmbeddingGradient{"embedding_gradient", infer_gradient, nullptr, cost_gradient, run_gradient};

Tensor embedding(Tensor ids, Tensor table) { return ids.tape->emit(kEmbedding, {ids, table})[0]; }

}  // namespace relume
