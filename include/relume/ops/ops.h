// The functions models are written with. Each validates, appends one node to the tape and returns its output; their
// gradient rules are beside them in src/ops. N = rows (tokens of a micro-batch), C = columns.
#pragma once
#include <array>

#include "relume/backend/kernels.h"
#include "relume/tape/tape.h"

namespace relume {

/// a + b, same shape.
Tensor add(Tensor a, Tensor b);

/// Rows of a table.   ids (N) i32, table (V, C) -> (N, C), of the table's dtype.
Tensor embedding(Tensor ids, Tensor table);

/// RMS normalisation over the last axis: x / sqrt(mean(x^2) + eps) * weight.   x (N, C), weight (C) -> (N, C).
/// Cost: 4 N C flops. Source: Zhang & Sennrich 2019, eq. 4; cast order as Hugging Face LlamaRMSNorm.
Tensor rms_norm(Tensor x, Tensor weight, double eps);

/// x weight^T.   x (N, I), weight (O, I) -> (N, O).   Cost: 2 N I O flops.
Tensor linear(Tensor x, Tensor weight);
/// Adds x weight^T to the persistent `into`, which has the accumulation dtype, in place. No gradient.
Tensor add_linear(Tensor x, Tensor weight, Tensor into);
/// x weight [+ residual]: a projection whose weight is component-major.   x (N, I), weight (I, O), residual (N, O) -> (N, O).
Tensor project(Tensor x, Tensor weight, Tensor residual = {});

/// "nt", "nn" or "tn": which operand of a matmul node is transposed. For reports.
[[nodiscard]] std::string_view matmul_form(const std::any& attributes);

/// Rotary position embedding of the first `rotated_columns` columns, heads of head_dim, position = row % tokens.
/// table (tokens, head_dim): cosines, then sines.
Tensor rope(Tensor x, Tensor table, std::int64_t head_dim, std::int64_t rotated_columns, bool inverse = false);

/// Causal grouped-query attention on packed columns.   qkv (N, (heads + 2 kv_heads) head_dim) -> (N, heads head_dim).
/// Cost: 2 head_dim heads N (tokens + 1) flops; backward 2.5 times that.
Tensor attention(Tensor qkv, const AttentionLayout& layout);

/// Attention of the next layout.tokens tokens of one sequence to those in the persistent cache (context, 2 kv_heads head_dim) and to each
/// other; their keys and values are put into the cache at state.position. No gradient.   qkv as attention() -> (tokens, heads head_dim).
Tensor cached_attention(Tensor qkv, Tensor state, Tensor cache, const AttentionLayout& layout);

/// silu(gate) up.   gate_up (N, 2 F): gate, then up -> (N, F).
Tensor swiglu(Tensor gate_up);

/// Cross-entropy of softmax(x weight^T), summed over rows whose target is >= 0, each weighted by state.inverse_targets; logits
/// exist for `chunk_rows` rows at a time -> loss (1) f64; the unweighted nll is added to the StepResult. If weight has an
/// accumulator the same node forms dx and adds to dweight.
/// x (N, C), weight (V, C), targets (N) i32, state and result u8.   Workspace: chunk_rows V * 4 bytes and a scratchpad.
Tensor linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, Tensor state, Tensor result, std::int64_t chunk_rows);

/// Rows of the chosen components of a component-major weight; the gradient is a scatter-add into the weight's accumulator.
Tensor gather_components(Tensor weight, Tensor indices, const Segments& segments);
/// Columns of component j times weights[j]; `columns` each. No gradient flows to the weights.
Tensor scale_components(Tensor x, Tensor weights, std::int64_t columns);
/// ||columns of x of component j||_F ||rows of weight of component j||_F -> (n). Written into the
/// persistent `into` where that is given.
Tensor component_scores(Tensor x, Tensor weight, std::int64_t columns, Tensor into = {});
/// The k components with the largest scores; weight 1 (Selection::weights absent).
Selection select_top_k(Tensor scores, Tensor result, std::int64_t k);
/// k components drawn with water-filled probabilities p >= min_probability; weights 1 / p.
/// Errors: kInvalidArgument unless n min_probability <= k <= n.
struct SketchSelection {
  Selection selection;
  Tensor probabilities;  // (n) i32, units of 2^-24
};
SketchSelection select_sketch(Tensor scores, Tensor state, Tensor result, std::int64_t k, double min_probability,
                              std::int64_t layer, std::int64_t block);

/// Sum of squares -> (1) f64.
Tensor sum_of_squares(Tensor x);

struct AdamwAttributes {
  std::int64_t decayed = 0;  ///< the first elements, which get weight decay
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0;
};
/// One optimizer update over flat lists (P); clears the gradient. `rounded` may be absent: bf16 copy of the first weights.
void adamw(Tensor weight, Tensor gradient, Tensor m, Tensor v, Tensor squares, Tensor state, Tensor result, Tensor rounded,
           const AdamwAttributes& attributes);
/// Writes the first weights (f32) into `rounded` (bf16): what adamw does after its update.
void round_to_bf16(Tensor weight, Tensor rounded);

extern const OpDef kAdd, kEmbedding, kEmbeddingGradient, kRmsNorm, kRmsNormGradient, kMatmul, kRope, kAttention,
    kAttentionGradient, kCachedAttention, kSwiglu, kSwigluGradient, kLinearCrossEntropy, kGatherComponents, kScatterAddComponents,
    kScaleComponents, kComponentScores, kSelectTopK, kSelectSketch, kSumOfSquares, kAdamw, kRoundToBf16;

/// Every op, for tests and benchmarks that go through all of them.
inline const std::array kAllOps{
    &kAdd,           &kEmbedding,      &kEmbeddingGradient,  &kRmsNorm,          &kRmsNormGradient,
    &kMatmul,        &kRope,           &kAttention,          &kAttentionGradient, &kCachedAttention, &kSwiglu,
    &kSwigluGradient, &kLinearCrossEntropy, &kGatherComponents, &kScatterAddComponents, &kScaleComponents,
    &kComponentScores, &kSelectTopK,   &kSelectSketch,       &kSumOfSquares,     &kAdamw,
    &kRoundToBf16};

}  // namespace relume
