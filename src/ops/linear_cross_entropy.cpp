#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

struct LinearCrossEntropyAttributes {
  std::int64_t chunk_rows;
};

enum Input { kX, kWeight, kTargets, kState, kResult, kInto };

// Outputs: loss (1) f64, the micro-batch's share of the step's mean; with gradients also dx and the new dweight. The result
// is a record that kernels add to in node order, not a value with versions.
std::vector<OutputSpec> infer(const InferContext& c) {
  c.require_rank(kX, "x", 2);
  c.require_floating(kX, "x");
  c.require_rank(kWeight, "weight", 2);
  c.require(c.shape(kWeight)[1] == c.shape(kX)[1],
            fmt::format("weight must be (V, {}), got {}", c.shape(kX)[1], c.shape(kWeight).to_string()));
  c.require_shape(kTargets, "targets", {c.shape(kX)[0]});
  c.require_dtype(kTargets, "targets", DType::i32);
  c.require_shape(kState, "state", {sizeof(StepState)});
  c.require_shape(kResult, "result", {sizeof(StepResult)});
  const std::int64_t chunk = c.attributes<LinearCrossEntropyAttributes>().chunk_rows;
  c.require(chunk > 0 && chunk <= c.shape(kX)[0], fmt::format("chunk_rows must be in 1..{}, got {}", c.shape(kX)[0], chunk));
  std::vector<OutputSpec> out{{.shape = {1}, .dtype = DType::f64}};
  if (c.has(kInto)) {
    c.require_shape(kInto, "dweight", c.shape(kWeight));
    out.push_back({.shape = c.shape(kX), .dtype = c.dtype(kX)});
    out.push_back({.shape = c.shape(kWeight), .dtype = c.dtype(kInto), .alias = kInto});
  }
  return out;
}

void vjp(Vjp& r) { r.add(kX, r.out(1)); }

LinearCrossEntropyArgs args(const NodeContext& n) {
  const bool gradient = n.out.size() > 1;
  return {n.in[kX],
          n.in[kWeight],
          n.in[kTargets],
          n.in[kState],
          n.in[kResult],
          n.out[0],
          gradient ? n.out[1] : TensorView{},
          gradient ? n.out[2] : TensorView{},
          n.attributes<LinearCrossEntropyAttributes>().chunk_rows,
          n.workspace};
}

Cost cost(const NodeContext& n) {
  const double product = 2 * static_cast<double>(n.in[kX].shape.elements()) * static_cast<double>(n.in[kWeight].shape[0]);
  return {.flops = n.out.size() > 1 ? 3 * product : product,
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.linear_cross_entropy.workspace_bytes(args(n)),
          .engine = Engine::kMatmul};
}

void run(const NodeContext& n) { n.kernels.linear_cross_entropy.run(args(n), n.stream); }

}  // namespace

const OpDef kLinearCrossEntropy{"linear_cross_entropy", infer, vjp, cost, run};

Tensor linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, Tensor state, Tensor result, std::int64_t chunk_rows) {
  Tape& tape = *x.tape;
  const auto out = tape.emit(kLinearCrossEntropy, {x, weight, targets, state, result, tape.accumulator(weight)},
                             LinearCrossEntropyAttributes{chunk_rows});
  if (out.size() > 1) tape.set_accumulator(weight, out[2]);
  return tape.name(out[0], "loss");
}

}  // namespace relume
