#include <fmt/format.h>

#include <algorithm>

#include "cudnn_attention.h"
#include "relume/base/error.h"

namespace relume::cuda {

namespace {

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char text[2048] = "";
  cudnnGetLastErrorString(text, sizeof text);
  throw Error(ErrorCode::kRuntime, fmt::format("[cudnn] {}: {}: {}", what, cudnnGetErrorString(status), text));
}

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT, kBf16 = CUDNN_DATA_BFLOAT16;

CudnnGraph::Extents dense_strides(const CudnnGraph::Extents& extents) {
  CudnnGraph::Extents strides(extents.size(), 1);
  for (std::size_t i = extents.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * extents[i + 1];
  return strides;
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) { check(cudnnBackendCreateDescriptor(type, &raw_), "cudnnBackendCreateDescriptor"); }

Descriptor::~Descriptor() {
  if (raw_) cudnnBackendDestroyDescriptor(raw_);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(raw_, name, type, count, values), "cudnnBackendSetAttribute");
  return *this;
}

Descriptor& Descriptor::finalize(const char* what) {
  check(cudnnBackendFinalize(raw_), what);
  return *this;
}

CudnnGraph::Tensor CudnnGraph::make(std::int64_t id, Extents extents, Extents strides, cudnnDataType_t type, bool temporary, bool by_value) {
  const std::int64_t alignment = 16, rank = std::ssize(extents);
  Descriptor& d = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, extents.data())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides.data())
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &temporary)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value)
      .finalize("tensor");
  tensors_[id] = {extents, std::move(strides), type, temporary, by_value};
  return {&d, std::move(extents), id};
}

CudnnGraph::Tensor CudnnGraph::tensor(Operand operand, Extents extents, Extents strides, cudnnDataType_t type) {
  return make(static_cast<std::int64_t>(operand), std::move(extents), std::move(strides), type, false, false);
}

CudnnGraph::Tensor CudnnGraph::scalar(Operand operand) { return make(static_cast<std::int64_t>(operand), {1, 1, 1, 1}, {1, 1, 1, 1}, kFloat, false, true); }

CudnnGraph::Tensor CudnnGraph::temporary(Extents extents, cudnnDataType_t type) {
  Extents strides = dense_strides(extents);
  return make(next_++, std::move(extents), std::move(strides), type, true, false);
}

void CudnnGraph::append(const Descriptor& operation, Operation record) {
  raw_operations_.push_back(operation.raw());
  operations_.push_back(record);
}

CudnnGraph::Tensor CudnnGraph::matmul(Tensor a, Tensor b, Tensor y) {
  Descriptor& m = add(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  m.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &kFloat).finalize("matmul");
  Descriptor& o = add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *y.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, m)
      .finalize("matmul operation");
  append(o, {Kind::kMatmul, 0, a.id, b.id, 0, y.id, 0});
  return y;
}

CudnnGraph::Tensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, const Tensor* b, Tensor y, const Tensor* t, std::int64_t axis, cudnnDataType_t precision) {
  Descriptor& p = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  p.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  if (axis >= 0) p.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  p.finalize("pointwise");
  Descriptor& o = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p).set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor).set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor);
  if (b) o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->descriptor);
  if (t) o.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t->descriptor);
  o.finalize("pointwise operation");
  append(o, {Kind::kPointwise, mode, x.id, b ? b->id : 0, t ? t->id : 0, y.id, axis});
  return y;
}

CudnnGraph::Tensor CudnnGraph::reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  Descriptor& r = add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  r.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op).set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &kFloat).finalize("reduction");
  Descriptor& o = add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, r)
      .finalize("reduction operation");
  append(o, {Kind::kReduction, op, x.id, 0, 0, y.id, 0});
  return y;
}

CudnnGraph::Tensor CudnnGraph::transpose(Tensor x, Extents strides, cudnnDataType_t type) {
  Extents extents = x.extents;
  std::swap(extents[2], extents[3]);
  Tensor y = make(next_++, std::move(extents), std::move(strides), type, true, false);
  Descriptor& o = add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.descriptor).set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y.descriptor).finalize("reshape operation");
  append(o, {Kind::kTranspose, 0, x.id, 0, 0, y.id, 0});
  return y;
}

Descriptor CudnnGraph::plan(cudnnHandle_t handle, const Descriptor* description) {
  Descriptor& graph = add(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(raw_operations_), raw_operations_.data());
  if (handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.finalize("operation graph");
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  Descriptor& heuristics = add(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph).set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (description) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *description);
  heuristics.finalize("heuristics");
  std::int64_t offered = 0;
  check(cudnnBackendGetAttribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &offered, nullptr), "number of engines");
  std::vector<cudnnBackendDescriptor_t> engines;
  for (std::int64_t i = 0; i < offered; ++i) engines.push_back(add(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  check(cudnnBackendGetAttribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &offered, engines.data()), "engines");
  std::string why = "no engine";
  for (std::int64_t i = 0; i < offered; ++i) {
    try {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engines[static_cast<std::size_t>(i)]);
      if (handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
      if (description) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *description);
      plan.finalize("execution plan");
      return plan;
    } catch (const Error& e) {
      why = e.what();
    }
  }
  throw Error(ErrorCode::kRuntime, fmt::format("[cudnn] nothing takes this graph: {}", why));
}

std::int64_t workspace_of(const Descriptor& plan) {
  std::int64_t bytes = 0, count = 0;
  check(cudnnBackendGetAttribute(plan.raw(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes), "workspace");
  return bytes;
}

// --- the graphs -----------------------------------------------------------------------------------------------------------------

namespace {

/// Extents and strides of the operands; sequences, heads, tokens, head_dim.
struct Operands {
  CudnnGraph::Extents query, query_strides, key, key_strides, key_turned, key_turned_strides, out_strides, row, row_strides, scores;

  Operands(const AttentionLayout& l, std::int64_t b) {
    const std::int64_t s = l.tokens, h = l.heads, g = l.kv_heads, d = l.head_dim, columns = (h + 2 * g) * d;
    query = {b, h, s, d};
    query_strides = {s * columns, d, columns, 1};
    key = {b, g, s, d};
    key_strides = {s * columns, d, columns, 1};
    key_turned = {b, g, d, s};
    key_turned_strides = {s * columns, d, 1, columns};
    out_strides = {s * h * d, d, h * d, 1};
    row = {b, h, s, 1};
    row_strides = {h * s, s, 1, 1};
    scores = {b, h, s, s};
  }
};

CudnnGraph::Tensor causal(CudnnGraph& g, CudnnGraph::Tensor scores, CudnnGraph::Tensor masked) {
  const auto row = g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, g.temporary(scores.extents, CUDNN_DATA_INT32), nullptr, 2);
  const auto column = g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, g.temporary(scores.extents, CUDNN_DATA_INT32), nullptr, 3);
  const auto seen = g.pointwise(CUDNN_POINTWISE_CMP_GE, row, &column, g.temporary(scores.extents, CUDNN_DATA_BOOLEAN), nullptr, -1, CUDNN_DATA_BOOLEAN);
  return g.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &masked, g.temporary(scores.extents), &seen);
}

}  // namespace

CudnnGraph attention_graph(const AttentionLayout& l, std::int64_t sequences) {
  const Operands o(l, sequences);
  CudnnGraph g;
  const auto q = g.tensor(Operand::kQuery, o.query, o.query_strides, kBf16), k = g.tensor(Operand::kKey, o.key_turned, o.key_turned_strides, kBf16),
             v = g.tensor(Operand::kValue, o.key, o.key_strides, kBf16), scale = g.scalar(Operand::kScale), masked = g.scalar(Operand::kMasked);
  auto s = g.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, k, g.temporary(o.scores)), &scale, g.temporary(o.scores));
  s = causal(g, s, masked);
  const auto top = g.reduce(CUDNN_REDUCE_TENSOR_MAX, s, g.temporary(o.row));
  const auto e = g.pointwise(CUDNN_POINTWISE_EXP, g.pointwise(CUDNN_POINTWISE_SUB, s, &top, g.temporary(o.scores)), nullptr, g.temporary(o.scores));
  const auto sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, g.temporary(o.row));
  const auto log = g.pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, g.temporary(o.row));
  g.pointwise(CUDNN_POINTWISE_ADD, top, &log, g.tensor(Operand::kLse, o.row, o.row_strides, kFloat));
  const auto p = g.pointwise(CUDNN_POINTWISE_DIV, e, &sum, g.temporary(o.scores, kBf16));
  g.matmul(p, v, g.tensor(Operand::kOut, o.query, o.out_strides, kBf16));
  return g;
}

CudnnGraph attention_gradient_graph(const AttentionLayout& l, std::int64_t sequences) {
  const Operands o(l, sequences);
  const CudnnGraph::Extents turned{l.heads * l.tokens * l.tokens, l.tokens * l.tokens, 1, l.tokens};  // probabilities, read the other way round
  CudnnGraph g;
  const auto q = g.tensor(Operand::kQuery, o.query, o.query_strides, kBf16), k = g.tensor(Operand::kKey, o.key_turned, o.key_turned_strides, kBf16),
             v = g.tensor(Operand::kValue, o.key_turned, o.key_turned_strides, kBf16), out = g.tensor(Operand::kOut, o.query, o.out_strides, kBf16),
             lse = g.tensor(Operand::kLse, o.row, o.row_strides, kFloat), dout = g.tensor(Operand::kDout, o.query, o.out_strides, kBf16),
             scale = g.scalar(Operand::kScale), masked = g.scalar(Operand::kMasked), one = g.scalar(Operand::kOne);
  auto delta = g.reduce(CUDNN_REDUCE_TENSOR_ADD, g.pointwise(CUDNN_POINTWISE_MUL, dout, &out, g.temporary(o.query)), g.temporary(o.row));
  delta = g.pointwise(CUDNN_POINTWISE_MUL, delta, &one, g.tensor(Operand::kDelta, o.row, o.row_strides, kFloat));
  auto s = g.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, k, g.temporary(o.scores)), &scale, g.temporary(o.scores));
  s = causal(g, g.pointwise(CUDNN_POINTWISE_SUB, s, &lse, g.temporary(o.scores)), masked);
  const auto p = g.pointwise(CUDNN_POINTWISE_EXP, s, nullptr, g.temporary(o.scores));
  const auto for_key_head = [&](CudnnGraph::Tensor left, CudnnGraph::Tensor right, Operand to) {
    const auto y = g.tensor(to, o.key, o.key_strides, kBf16);
    if (l.heads == l.kv_heads) return g.matmul(left, right, y);
    return g.reduce(CUDNN_REDUCE_TENSOR_ADD, g.matmul(left, right, g.temporary(o.query, kBf16)), y);  // over the group's query heads
  };
  for_key_head(g.transpose(p, turned, kBf16), dout, Operand::kDvalue);
  auto ds = g.pointwise(CUDNN_POINTWISE_SUB, g.matmul(dout, v, g.temporary(o.scores)), &delta, g.temporary(o.scores));
  ds = g.pointwise(CUDNN_POINTWISE_MUL, ds, &p, g.temporary(o.scores));
  ds = g.pointwise(CUDNN_POINTWISE_MUL, ds, &scale, g.temporary(o.scores));
  for_key_head(g.transpose(ds, turned, kBf16), q, Operand::kDkey);
  g.matmul(ds, g.transpose(k, o.key_strides, kBf16), g.tensor(Operand::kDquery, o.query, o.query_strides, kBf16));
  return g;
}

}  // namespace relume::cuda
