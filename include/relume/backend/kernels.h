// The kernel table: what a backend must be able to compute. One entry a kernel; kernel_arguments.h says what each does.
#pragma once
#include <array>
#include <string_view>

#include "relume/backend/kernel_arguments.h"

namespace relume {

/// Where work is queued: a cudaStream_t, or null on the CPU, where a kernel has finished when it returns.
struct Stream {
  void* handle = nullptr;
};

/// One kernel. `workspace` says how many bytes of scratch the call needs (shapes and dtypes only); null means none.
template <class Args>
struct Kernel {
  void (*run)(const Args&, Stream) = nullptr;
  std::int64_t (*workspace)(const Args&) = nullptr;

  [[nodiscard]] std::int64_t workspace_bytes(const Args& args) const { return workspace ? workspace(args) : 0; }
};

/// Another way to form a product, for benchmarks. "prepared" leaves out the passes that bring operands into the form its kernel
/// reads, so its result is meaningless: the rate that those passes leave to be had.
struct MatmulVariant {
  std::string_view name;
  Kernel<MatmulArgs> kernel;
};

struct KernelTable {
  Kernel<AddArgs> add;
  Kernel<EmbeddingArgs> embedding;
  Kernel<EmbeddingGradientArgs> embedding_gradient;
  Kernel<RmsNormArgs> rms_norm;
  Kernel<RmsNormGradientArgs> rms_norm_gradient;
  Kernel<MatmulArgs> matmul;
  std::array<MatmulVariant, 2> matmul_variants;
  Kernel<RopeArgs> rope;
  Kernel<AttentionArgs> attention;
  Kernel<AttentionGradientArgs> attention_gradient;
  Kernel<CachedAttentionArgs> cached_attention;
  Kernel<SwigluArgs> swiglu;
  Kernel<SwigluGradientArgs> swiglu_gradient;
  Kernel<LinearCrossEntropyArgs> linear_cross_entropy;
  Kernel<GatherComponentsArgs> gather_components;
  Kernel<ScatterAddComponentsArgs> scatter_add_components;
  Kernel<ScaleComponentsArgs> scale_components;
  Kernel<ComponentScoresArgs> component_scores;
  Kernel<SelectTopKArgs> select_top_k;
  Kernel<SelectSketchArgs> select_sketch;
  Kernel<SumOfSquaresArgs> sum_of_squares;
  Kernel<AdamwArgs> adamw;
  Kernel<RoundToBf16Args> round_to_bf16;
};

}  // namespace relume
