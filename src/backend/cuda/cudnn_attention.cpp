#include "cudnn_attention.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "relume/base/error.h"
#include "table.h"

namespace relume::cuda {

namespace {

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw Error(ErrorCode::kRuntime, fmt::format("[cudnn] {}: {}", what, cudnnGetErrorString(status)));
}

/// Null where there is no device.
cudnnHandle_t handle() {
  static const cudnnHandle_t made = [] {
    cudnnHandle_t h = nullptr;
    return cudnnCreate(&h) == CUDNN_STATUS_SUCCESS ? h : nullptr;
  }();
  return made;
}

constexpr std::int64_t kMostScratch = std::int64_t{256} << 20;  // of the deterministic gradient; more sequences go in turns
std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct PlannedGraph {
  CudnnGraph graph;
  Descriptor plan;
  std::int64_t workspace_bytes;
};

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;

/// The plan for a shape, or null if cuDNN does not take it: decided once.
const PlannedGraph* planned(const AttentionLayout& l, std::int64_t sequences, bool gradient) {
  static std::map<Key, std::unique_ptr<PlannedGraph>> plans;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [it, added] = plans.try_emplace({l.tokens, l.heads, l.kv_heads, l.head_dim, sequences, gradient});
  if (!added) return it->second.get();
  try {
    CudnnGraph graph = gradient ? attention_gradient_graph(l, sequences) : attention_graph(l, sequences);
    Descriptor plan = graph.plan(handle());
    const std::int64_t bytes = workspace_of(plan);
    it->second = std::make_unique<PlannedGraph>(PlannedGraph{std::move(graph), std::move(plan), bytes});
  } catch (const Error& e) {
    spdlog::info("attention of {} tokens, head size {}: own kernels, since {}", l.tokens, l.head_dim, e.what());
  }
  return it->second.get();
}

/// Sequences that the gradient takes at a time.
std::int64_t sequences_at_once(const AttentionLayout& l, std::int64_t sequences) {
  const std::int64_t each = l.heads * l.tokens * l.tokens * 2;
  std::int64_t n = std::min(sequences, std::max<std::int64_t>(1, kMostScratch / each));
  while (sequences % n != 0) --n;
  return n;
}

std::int64_t sequences_of(const TensorView& qkv, const AttentionLayout& l) { return qkv.shape[0] / l.tokens; }
bool suits(const TensorView& qkv, const AttentionLayout& l) { return qkv.dtype == DType::bf16 && l.head_dim % 8 == 0 && l.head_dim <= 128 && handle() != nullptr; }

struct Pointers {
  std::vector<std::int64_t> ids;
  std::vector<void*> data;
  void add(Operand operand, void* p) {
    ids.push_back(static_cast<std::int64_t>(operand));
    data.push_back(p);
  }
};

void execute(const PlannedGraph& p, Pointers pointers, void* workspace, cudaStream_t stream) {
  check(cudnnSetStream(handle(), stream), "cudnnSetStream");
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::ssize(pointers.data), pointers.data.data())
      .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::ssize(pointers.ids), pointers.ids.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finalize("variant pack");
  check(cudnnBackendExecute(handle(), p.plan.raw(), pack.raw()), "cudnnBackendExecute");
}

// By-value operands are read when the call is made.
float masked_score = -1e30f, one = 1.f;

void* at(const TensorView& view, std::int64_t elements) { return view.as<char>() + elements * size_of(view.dtype); }

}  // namespace

bool cudnn_takes(const AttentionArgs& a) { return suits(a.qkv, a.layout) && planned(a.layout, sequences_of(a.qkv, a.layout), false); }

bool cudnn_takes(const AttentionGradientArgs& a) {
  return suits(a.qkv, a.layout) && planned(a.layout, sequences_at_once(a.layout, sequences_of(a.qkv, a.layout)), true);
}

std::int64_t cudnn_workspace(const AttentionArgs& a) { return planned(a.layout, sequences_of(a.qkv, a.layout), false)->workspace_bytes; }

// delta, dq dk dv of all sequences (which may be meant for the place of qkv), scratch.
std::int64_t cudnn_workspace(const AttentionGradientArgs& a) {
  const std::int64_t n = sequences_at_once(a.layout, sequences_of(a.qkv, a.layout));
  return aligned(a.lse.shape.elements() * 4) + aligned(a.qkv.bytes()) + planned(a.layout, n, true)->workspace_bytes;
}

void cudnn_run(const AttentionArgs& a, Stream stream) {
  const AttentionLayout& l = a.layout;
  float scale = 1 / std::sqrt(static_cast<float>(l.head_dim));
  Pointers p;
  p.add(Operand::kQuery, at(a.qkv, 0));
  p.add(Operand::kKey, at(a.qkv, l.heads * l.head_dim));
  p.add(Operand::kValue, at(a.qkv, (l.heads + l.kv_heads) * l.head_dim));
  p.add(Operand::kOut, a.out.data);
  p.add(Operand::kLse, a.lse.data);
  p.add(Operand::kScale, &scale);
  p.add(Operand::kMasked, &masked_score);
  execute(*planned(l, sequences_of(a.qkv, l), false), std::move(p), a.workspace, static_cast<cudaStream_t>(stream.handle));
}

void cudnn_run(const AttentionGradientArgs& a, Stream stream) {
  const AttentionLayout& l = a.layout;
  const std::int64_t all = sequences_of(a.qkv, l), n = sequences_at_once(l, all);
  float scale = 1 / std::sqrt(static_cast<float>(l.head_dim));
  char* const delta = static_cast<char*>(a.workspace);
  const TensorView gradient{delta + aligned(a.lse.shape.elements() * 4), a.qkv.dtype, a.qkv.shape};
  void* const scratch = gradient.as<char>() + aligned(a.qkv.bytes());
  const auto cuda_stream = static_cast<cudaStream_t>(stream.handle);
  for (std::int64_t first = 0; first < all; first += n) {
    const std::int64_t packed = first * l.tokens * a.qkv.shape[1], rows = first * l.tokens * l.heads * l.head_dim, statistics = first * l.heads * l.tokens;
    const std::int64_t key = packed + l.heads * l.head_dim, value = key + l.kv_heads * l.head_dim;
    Pointers p;
    p.add(Operand::kQuery, at(a.qkv, packed));
    p.add(Operand::kKey, at(a.qkv, key));
    p.add(Operand::kValue, at(a.qkv, value));
    p.add(Operand::kOut, at(a.out, rows));
    p.add(Operand::kLse, at(a.lse, statistics));
    p.add(Operand::kDout, at(a.dout, rows));
    p.add(Operand::kDquery, at(gradient, packed));
    p.add(Operand::kDkey, at(gradient, key));
    p.add(Operand::kDvalue, at(gradient, value));
    p.add(Operand::kDelta, delta + statistics * 4);
    p.add(Operand::kScale, &scale);
    p.add(Operand::kMasked, &masked_score);
    p.add(Operand::kOne, &one);
    execute(*planned(l, n, true), std::move(p), scratch, cuda_stream);
  }
  check(cudaMemcpyAsync(a.dqkv.data, gradient.data, static_cast<std::size_t>(a.qkv.bytes()), cudaMemcpyDeviceToDevice, cuda_stream), "cudaMemcpyAsync");
}

}  // namespace relume::cuda
