#include "cudnn_interpreter.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cudnn_attention.h"

namespace relume::test {

namespace {

using cuda::CudnnGraph;
using cuda::Operand;
using Extents = CudnnGraph::Extents;

float rounded(float x, cudnnDataType_t type) { return type == CUDNN_DATA_BFLOAT16 ? __bfloat162float(__float2bfloat16_rn(x)) : x; }

/// Contents of every operand as floats, addressed by its strides.
using Contents = std::map<std::int64_t, std::vector<float>>;

std::int64_t offset(const CudnnGraph::TensorInfo& t, const Extents& i) {
  std::int64_t o = 0;
  for (std::size_t k = 0; k < 4; ++k) o += i[k] * t.strides[k];
  return o;
}

/// The element that index `i` of a tensor of extents `full` means in one that may be broadcast: extent 1, or fewer heads.
Extents broadcast(const CudnnGraph::TensorInfo& t, Extents i, const Extents& full) {
  for (std::size_t k = 0; k < 4; ++k) i[k] = t.extents[k] == full[k] ? i[k] : t.extents[k] == 1 ? 0 : i[k] / (full[k] / t.extents[k]);
  return i;
}

template <class F>
void each(const Extents& extents, F&& f) {
  Extents i(4);
  for (i[0] = 0; i[0] < extents[0]; ++i[0])
    for (i[1] = 0; i[1] < extents[1]; ++i[1])
      for (i[2] = 0; i[2] < extents[2]; ++i[2])
        for (i[3] = 0; i[3] < extents[3]; ++i[3]) f(i);
}

float apply(int mode, float a, float b, float t, const Extents& i, std::int64_t axis) {
  switch (mode) {
    case CUDNN_POINTWISE_MUL:
      return a * b;
    case CUDNN_POINTWISE_ADD:
      return a + b;
    case CUDNN_POINTWISE_SUB:
      return a - b;
    case CUDNN_POINTWISE_DIV:
      return a / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(a);
    case CUDNN_POINTWISE_LOG:
      return std::log(a);
    case CUDNN_POINTWISE_GEN_INDEX:
      return static_cast<float>(i[static_cast<std::size_t>(axis)]);
    case CUDNN_POINTWISE_CMP_GE:
      return a >= b ? 1.f : 0.f;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? a : b;
    default:
      return NAN;
  }
}

void interpret(const CudnnGraph& g, Contents& contents) {
  for (const auto& [id, t] : g.tensors()) {
    std::int64_t size = 1;
    for (std::size_t k = 0; k < 4; ++k) size += (t.extents[k] - 1) * t.strides[k];
    std::vector<float>& v = contents[id];
    if (static_cast<std::int64_t>(v.size()) < size) v.resize(static_cast<std::size_t>(size), NAN);
  }
  for (const CudnnGraph::Operation& o : g.operations()) {
    const auto &tx = g.tensors().at(o.x), &ty = g.tensors().at(o.y);
    const std::vector<float>& x = contents.at(o.x);
    std::vector<float>& y = contents.at(o.y);
    const auto get = [&](std::int64_t id, const Extents& i, const Extents& full) {
      return id == 0 ? 0.f : contents.at(id)[static_cast<std::size_t>(offset(g.tensors().at(id), broadcast(g.tensors().at(id), i, full)))];
    };
    const auto put = [&](const Extents& i, double value) { y[static_cast<std::size_t>(offset(ty, i))] = rounded(static_cast<float>(value), ty.type); };
    if (o.kind == CudnnGraph::Kind::kMatmul) {
      Extents full_x = ty.extents, full_b = ty.extents;
      full_x[3] = tx.extents[3];
      full_b[2] = tx.extents[3];
      each(ty.extents, [&](const Extents& i) {
        double sum = 0;
        for (std::int64_t k = 0; k < tx.extents[3]; ++k)
          sum += static_cast<double>(get(o.x, {i[0], i[1], i[2], k}, full_x)) * static_cast<double>(get(o.b, {i[0], i[1], k, i[3]}, full_b));
        put(i, sum);
      });
    } else if (o.kind == CudnnGraph::Kind::kPointwise) {
      each(ty.extents, [&](const Extents& i) {
        const float t = o.t ? get(o.t, i, ty.extents) : 0.f;
        put(i, static_cast<double>(apply(o.mode, get(o.x, i, ty.extents), get(o.b, i, ty.extents), t, i, o.axis)));
      });
    } else if (o.kind == CudnnGraph::Kind::kTranspose) {
      each(ty.extents, [&](const Extents& i) { put(i, static_cast<double>(x[static_cast<std::size_t>(offset(tx, {i[0], i[1], i[3], i[2]}))])); });
    } else {  // over the axis on which y is smaller: the last, or the heads of a group
      const std::size_t axis = ty.extents[1] == tx.extents[1] ? 3 : 1;
      const std::int64_t n = tx.extents[axis] / ty.extents[axis];
      each(ty.extents, [&](const Extents& i) {
        double r = o.mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
        for (std::int64_t k = 0; k < n; ++k) {
          Extents at = i;
          at[axis] = i[axis] * n + k;
          const auto v = static_cast<double>(x[static_cast<std::size_t>(offset(tx, at))]);
          r = o.mode == CUDNN_REDUCE_TENSOR_MAX ? std::max(r, v) : r + v;
        }
        put(i, r);
      });
    }
  }
}

}  // namespace

bool interpret_cudnn_attention(const AttentionLayout& l, std::int64_t sequences, const std::vector<float>& qkv, const std::vector<float>& dout,
                               std::vector<float>& out, std::vector<float>& dqkv) {
  const auto id = [](Operand o) { return static_cast<std::int64_t>(o); };
  const auto from = [](const std::vector<float>& v, std::int64_t first) { return std::vector<float>(v.begin() + first, v.end()); };
  const std::int64_t key = l.heads * l.head_dim, value = key + l.kv_heads * l.head_dim;
  Contents contents{{id(Operand::kQuery), qkv},
                    {id(Operand::kKey), from(qkv, key)},
                    {id(Operand::kValue), from(qkv, value)},
                    {id(Operand::kDout), dout},
                    {id(Operand::kScale), {1 / std::sqrt(static_cast<float>(l.head_dim))}},
                    {id(Operand::kMasked), {-1e30f}},
                    {id(Operand::kOne), {1.f}}};
  interpret(cuda::attention_graph(l, sequences), contents);
  out = contents.at(id(Operand::kOut));
  Contents again;
  for (const Operand o : {Operand::kQuery, Operand::kKey, Operand::kValue, Operand::kDout, Operand::kScale, Operand::kMasked, Operand::kOne, Operand::kOut, Operand::kLse})
    again[id(o)] = contents.at(id(o));
  interpret(cuda::attention_gradient_graph(l, sequences), again);
  dqkv.assign(qkv.size(), NAN);
  const std::int64_t columns = value + l.kv_heads * l.head_dim;
  const auto place = [&](Operand o, std::int64_t first, std::int64_t width) {
    const std::vector<float>& v = again.at(id(o));
    for (std::int64_t row = 0; row < sequences * l.tokens; ++row)
      for (std::int64_t c = 0; c < width; ++c) dqkv[static_cast<std::size_t>(row * columns + first + c)] = v[static_cast<std::size_t>(row * columns + c)];
  };
  place(Operand::kDquery, 0, key);
  place(Operand::kDkey, key, l.kv_heads * l.head_dim);
  place(Operand::kDvalue, value, l.kv_heads * l.head_dim);
  return true;
}

}  // namespace relume::test
