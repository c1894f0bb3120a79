// Choice of components from their scores: the largest, or an unbiased draw.
#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

struct TopKAttributes {
  std::int64_t k;
};

void require_k(const InferContext& c, std::int64_t k) {
  c.require_rank(0, "scores", 1);
  c.require_floating(0, "scores");
  c.require(k >= 1 && k <= c.shape(0)[0], fmt::format("k must be in 1..{}, got {}", c.shape(0)[0], k));
}

std::vector<OutputSpec> infer_top_k(const InferContext& c) {
  const std::int64_t k = c.attributes<TopKAttributes>().k;
  require_k(c, k);
  return {{.shape = {k}, .dtype = DType::i32}};
}

Cost cost(const NodeContext& n) {  // a few dozen passes over the scores: bisection of the threshold or of the water level
  return {.flops = 100.0 * static_cast<double>(n.in[0].shape.elements()), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run_top_k(const NodeContext& n) { n.kernels.select_top_k.run({n.in[0], n.in[1], n.out[0]}, n.stream); }

struct SketchAttributes {
  std::int64_t k;
  double min_probability;
  std::int64_t layer, block;
};

std::vector<OutputSpec> infer_sketch(const InferContext& c) {
  const auto& a = c.attributes<SketchAttributes>();
  require_k(c, a.k);
  const std::int64_t n = c.shape(0)[0];
  c.require(a.min_probability >= 0 && a.min_probability * static_cast<double>(n) <= static_cast<double>(a.k),
            fmt::format("min_probability must be in 0..k/n = {}/{}, got {}", a.k, n, a.min_probability));
  return {{.shape = {a.k}, .dtype = DType::i32}, {.shape = {a.k}, .dtype = c.dtype(0)}, {.shape = {n}, .dtype = DType::i32}};
}

void run_sketch(const NodeContext& n) {
  const auto& a = n.attributes<SketchAttributes>();
  n.kernels.select_sketch.run({n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], n.out[2], a.min_probability, a.layer, a.block}, n.stream);
}

}  // namespace

const OpDef kSelectTopK{"select_top_k", infer_top_k, nullptr, cost, run_top_k};
const OpDef kSelectSketch{"select_sketch", infer_sketch, nullptr, cost, run_sketch};

Selection select_top_k(Tensor scores, Tensor result, std::int64_t k) {
  return {scores.tape->emit(kSelectTopK, {scores, result}, TopKAttributes{k})[0], {}};
}

SketchSelection select_sketch(Tensor scores, Tensor state, Tensor result, std::int64_t k, double min_probability, std::int64_t layer,
                              std::int64_t block) {
  const auto out = scores.tape->emit(kSelectSketch, {scores, state, result}, SketchAttributes{k, min_probability, layer, block});
  return {{out[0], out[1]}, out[2]};
}

}  // namespace relume
