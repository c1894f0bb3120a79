// Rows and columns of chosen components.
#include <fmt/format.h>

#include "relume/base/check.h"
#include "relume/ops/ops.h"

namespace relume {

namespace {

// --- gather_components and its gradient, scatter_add_components -------------------------------------------------------------

std::vector<OutputSpec> infer_gather(const InferContext& c) {
  const auto& segments = c.attributes<Segments>();
  c.require_rank(0, "weight", 2);
  c.require_rank(1, "indices", 1);
  c.require_dtype(1, "indices", DType::i32);
  const std::int64_t rows = segments.rows();
  c.require(segments.count > 0 && c.shape(0)[0] % rows == 0,
            fmt::format("rows of weight {} must be whole components of {} rows", c.shape(0).to_string(), rows));
  c.require(c.shape(1)[0] <= c.shape(0)[0] / rows,
            fmt::format("{} components chosen of {}", c.shape(1)[0], c.shape(0)[0] / rows));
  return {{.shape = {c.shape(1)[0] * rows, c.shape(0)[1]}, .dtype = c.dtype(0)}};
}

void vjp_gather(Vjp& r) {
  const Tensor into = r.accumulator(0);
  CHECK(into);
  r.set_accumulator(0, r.tape().emit(kScatterAddComponents, {r.dout(0), r.in(1), into}, r.attributes<Segments>())[0]);
}

Cost cost_gather(const NodeContext& n) { return {.bytes_read = n.bytes_out(), .bytes_written = n.bytes_out()}; }

void run_gather(const NodeContext& n) {
  n.kernels.gather_components.run({n.in[0], n.in[1], n.out[0], n.attributes<Segments>()}, n.stream);
}

std::vector<OutputSpec> infer_scatter(const InferContext& c) {
  const auto& segments = c.attributes<Segments>();
  c.require_shape(0, "dy", {c.shape(1)[0] * segments.rows(), c.shape(2)[1]});
  c.require_dtype(0, "dy", c.dtype(2));
  c.require_dtype(2, "dweight", accumulation_dtype(c.dtype(2)));
  return {{.shape = c.shape(2), .dtype = c.dtype(2), .alias = 2}};
}

Cost cost_scatter(const NodeContext& n) {
  const double rows = static_cast<double>(n.in[0].bytes());
  return {.flops = static_cast<double>(n.in[0].shape.elements()), .bytes_read = 2 * rows, .bytes_written = rows};
}

void run_scatter(const NodeContext& n) {
  n.kernels.scatter_add_components.run({n.in[0], n.in[1], n.out[0], n.attributes<Segments>()}, n.stream);
}

// --- scale_components -------------------------------------------------------------------------------------------------------

struct ColumnsAttributes {
  std::int64_t columns;
};

std::vector<OutputSpec> infer_scale(const InferContext& c) {
  const std::int64_t columns = c.attributes<ColumnsAttributes>().columns;
  c.require_rank(0, "x", 2);
  c.require_shape(1, "weights", {c.shape(0)[1] / columns});
  c.require(c.shape(0)[1] % columns == 0, fmt::format("columns of x {} must be whole components of {}", c.shape(0).to_string(), columns));
  return {{.shape = c.shape(0), .dtype = c.dtype(0), .may_alias = 0}};
}

void vjp_scale(Vjp& r) { r.add(0, scale_components(r.dout(0), r.in(1), r.attributes<ColumnsAttributes>().columns)); }

Cost cost_scale(const NodeContext& n) {
  return {.flops = static_cast<double>(n.out[0].shape.elements()), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run_scale(const NodeContext& n) {
  n.kernels.scale_components.run({n.in[0], n.in[1], n.out[0], n.attributes<ColumnsAttributes>().columns}, n.stream);
}

// --- component_scores -------------------------------------------------------------------------------------------------------

std::vector<OutputSpec> infer_scores(const InferContext& c) {
  const std::int64_t columns = c.attributes<ColumnsAttributes>().columns;
  c.require_rank(0, "x", 2);
  c.require_rank(1, "weight", 2);
  c.require(c.shape(0)[1] == c.shape(1)[0] && c.shape(0)[1] % columns == 0,
            fmt::format("columns of x {} and rows of weight {} must be the same whole components of {}", c.shape(0).to_string(),
                        c.shape(1).to_string(), columns));
  const Shape scores{c.shape(0)[1] / columns};
  if (c.has(2)) c.require_shape(2, "into", scores);
  return {{.shape = scores, .dtype = accumulation_dtype(c.dtype(0)), .alias = c.has(2) ? 2 : -1}};
}

ComponentScoresArgs scores_args(const NodeContext& n) {
  return {n.in[0], n.in[1], n.out[0], n.attributes<ColumnsAttributes>().columns, n.workspace};
}

Cost cost_scores(const NodeContext& n) {
  return {.flops = 2.0 * static_cast<double>(n.in[0].shape.elements() + n.in[1].shape.elements()),
          .bytes_read = n.bytes_in(),
          .bytes_written = n.bytes_out(),
          .workspace_bytes = n.kernels.component_scores.workspace_bytes(scores_args(n))};
}

void run_scores(const NodeContext& n) { n.kernels.component_scores.run(scores_args(n), n.stream); }

}  // namespace

const OpDef kGatherComponents{"gather_components", infer_gather, vjp_gather, cost_gather, run_gather};
const OpDef kScatterAddComponents{"scatter_add_components", infer_scatter, nullptr, cost_scatter, run_scatter};
const OpDef kScaleComponents{"scale_components", infer_scale, vjp_scale, cost_scale, run_scale};
const OpDef kComponentScores{"component_scores", infer_scores, nullptr, cost_scores, run_scores};

Tensor gather_components(Tensor weight, Tensor indices, const Segments& segments) {
  return weight.tape->emit(kGatherComponents, {weight, indices}, segments)[0];
}

Tensor scale_components(Tensor x, Tensor weights, std::int64_t columns) {
  return x.tape->emit(kScaleComponents, {x, weights}, ColumnsAttributes{columns})[0];
}

Tensor component_scores(Tensor x, Tensor weight, std::int64_t columns, Tensor into) {
  return x.tape->name(x.tape->emit(kComponentScores, {x, weight, into}, ColumnsAttributes{columns})[0], "scores");
}

}  // namespace relume
