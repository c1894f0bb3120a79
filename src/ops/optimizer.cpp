#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

std::vector<OutputSpec> infer_squares(const InferContext& c) {
  c.require_floating(0, "x");
  return {{.shape = {1}, .dtype = DType::f64}};
}

SumOfSquaresArgs squares_args(const NodeContext& n) { return {n.in[0], n.out[0], n.workspace}; }

Cost cost_squares(const NodeContext& n) {
  return {.flops = 2.0 * static_cast<double>(n.in[0].shape.elements()),
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.sum_of_squares.workspace_bytes(squares_args(n))};
}

void run_squares(const NodeContext& n) { n.kernels.sum_of_squares.run(squares_args(n), n.stream); }

enum Input { kWeight, kGradient, kM, kV, kSquares, kState, kResult, kRounded };

/// `rounded` holds the first elements of `weight` in bf16.
void require_rounded(const InferContext& c, int weight, int rounded) {
  c.require_dtype(rounded, "rounded", DType::bf16);
  c.require(c.shape(rounded).elements() <= c.shape(weight).elements(),
            fmt::format("rounded {} must not be longer than the weights {}", c.shape(rounded).to_string(), c.shape(weight).to_string()));
}

std::vector<OutputSpec> infer_adamw(const InferContext& c) {
  std::vector<OutputSpec> out;
  for (int i : {kWeight, kGradient, kM, kV}) {
    c.require_shape(i, "weight, gradient, m and v", c.shape(kWeight));
    c.require_dtype(i, "weight, gradient, m and v", DType::f32);
    out.push_back({.shape = c.shape(i), .dtype = DType::f32, .alias = i});
  }
  if (c.has(kRounded)) {
    require_rounded(c, kWeight, kRounded);
    out.push_back({.shape = c.shape(kRounded), .dtype = DType::bf16, .alias = kRounded});
  }
  return out;
}

Cost cost_adamw(const NodeContext& n) {
  const double parameters = static_cast<double>(n.in[kWeight].shape.elements());
  return {.flops = 14 * parameters, .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run_adamw(const NodeContext& n) {
  const auto& a = n.attributes<AdamwAttributes>();
  n.kernels.adamw.run({n.in[kSquares], n.in[kState], n.in[kGradient], n.in[kWeight], n.in[kM], n.in[kV], n.in[kResult], n.in[kRounded], a.decayed, a.beta1,
                       a.beta2, a.eps, a.weight_decay, a.grad_clip},
                      n.stream);
}

std::vector<OutputSpec> infer_round(const InferContext& c) {
  c.require_dtype(0, "weight", DType::f32);
  require_rounded(c, 0, 1);
  return {{.shape = c.shape(1), .dtype = DType::bf16, .alias = 1}};
}

Cost cost_round(const NodeContext& n) { return {.bytes_read = 2 * n.bytes_out(), .bytes_written = n.bytes_out()}; }

void run_round(const NodeContext& n) { n.kernels.round_to_bf16.run({n.in[0], n.out[0]}, n.stream); }

}  // namespace

const OpDef kRoundToBf16{"round_to_bf16", infer_round, nullptr, cost_round, run_round};
const OpDef kSumOfSquares{"sum_of_squares", infer_squares, nullptr, cost_squares, run_squares};
const OpDef kAdamw{"adamw", infer_adamw, nullptr, cost_adamw, run_adamw};

Tensor sum_of_squares(Tensor x) { return x.tape->emit(kSumOfSquares, {x})[0]; }

void adamw(Tensor weight, Tensor gradient, Tensor m, Tensor v, Tensor squares, Tensor state, Tensor result, Tensor rounded,
           const AdamwAttributes& attributes) {
  weight.tape->emit(kAdamw, {weight, gradient, m, v, squares, state, result, rounded}, attributes);
}

void round_to_bf16(Tensor weight, Tensor rounded) { weight.tape->emit(kRoundToBf16, {weight, rounded}); }

}  // namespace relume
