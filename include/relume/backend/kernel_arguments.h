// What each kernel computes, and on what: one struct a kernel.
//
// Contracts that hold for all of them: arguments were validated by the op (infer); kernels validate nothing, allocate
// nothing and do not synchronise with the host; sums are taken in f32 (f64 for f64 tensors) in an order that depends on
// shapes only, never on the number of threads. Weights of norms and gradients of weights have the accumulation dtype of the
// activations (f32 beside bf16). N = rows (tokens of a micro-batch), C = columns.
#pragma once
#include "relume/backend/step_state.h"
#include "relume/backend/tensor_view.h"

namespace relume {

/// y = a + b, any shape. y may be a or b.
struct AddArgs {
  TensorView a, b, y;
};

/// y[i] = table[ids[i]].   ids (N) i32, table (V, C) -> y (N, C).
struct EmbeddingArgs {
  TensorView ids, table, y;
};

/// dtable[ids[i]] += dy[i], in the order of i.   ids (N) i32, dy (N, C), dtable (V, C) f32.
struct EmbeddingGradientArgs {
  TensorView ids, dy, dtable;
};

/// y = x rstd weight, rstd = 1 / sqrt(mean(x^2) + eps), the normalised value rounded to the dtype of x before the weight
/// is applied (as Hugging Face LlamaRMSNorm).   x (N, C), weight (C) -> y (N, C), rstd (N).
struct RmsNormArgs {
  TensorView x, weight, y, rstd;
  double eps;
};

/// dx = residual + rstd (dy weight - x rstd^2 mean(dy weight x)), dweight += sum over rows of dy x rstd.
/// residual is optional. dx may be dy or residual.
struct RmsNormGradientArgs {
  TensorView x, weight, rstd, dy, residual, dx, dweight;
  void* workspace;
};

/// c = op(a) op(b) [+ residual] [+ c], row-major; op transposes if asked. residual has the shape of c; accumulate adds to
/// what c holds.
/// a and b have one dtype; c that dtype, or f32 where they are bf16. Products are summed in f32 and rounded once.
struct MatmulArgs {
  TensorView a, b, c, residual;
  bool transpose_a, transpose_b, accumulate;
  void* workspace;
};

/// Rotates pairs (i, i + head_dim / 2) of every head in the first `rotated_columns` columns by the angle of the row's
/// position (row % tokens); other columns are copied. `inverse` rotates back.
/// x, y (N, C); table (tokens, head_dim): cosines, then sines. y may be x.   Source: Su et al. 2021; half-split as Hugging Face.
struct RopeArgs {
  TensorView x, table, y;
  std::int64_t tokens, head_dim, rotated_columns;
  bool inverse;
};

/// Sequences of `tokens` rows; columns of qkv: query heads, key heads, value heads, each head_dim wide.
struct AttentionLayout {
  std::int64_t tokens, heads, kv_heads, head_dim;
};

/// Causal softmax(q k^T / sqrt(head_dim)) v; query head h reads key head h / (heads / kv_heads).
/// qkv (N, (heads + 2 kv_heads) head_dim) -> out (N, heads head_dim), lse (N / tokens, heads, tokens): log of the softmax sum.
/// Source: Dao et al. 2022 (tiles, online softmax).
struct AttentionArgs {
  TensorView qkv, out, lse;
  AttentionLayout layout;
  void* workspace;
};

constexpr std::int64_t kMostHeadDim = 256;  // of CachedAttentionArgs

/// Attention of the next tokens of one sequence, whose keys and values so far are in a cache (context, 2 kv_heads head_dim: keys, then
/// values). Row t of qkv (tokens, (heads + 2 kv_heads) head_dim) is the token at state.position + t: its key and value are put into the
/// cache, and it attends to all up to itself -> out (tokens, heads head_dim). Rows past the end of the cache are zero.
/// Source: the definition. head_dim is at most kMostHeadDim.
struct CachedAttentionArgs {
  TensorView qkv, state, cache, out;
  AttentionLayout layout;
};

/// dqkv may be qkv.
struct AttentionGradientArgs {
  TensorView qkv, out, lse, dout, dqkv;
  AttentionLayout layout;
  void* workspace;
};

/// y = silu(gate) up.   gate_up (N, 2 F): gate, then up -> y (N, F).
struct SwigluArgs {
  TensorView gate_up, y;
};

/// dgate_up may be gate_up.
struct SwigluGradientArgs {
  TensorView gate_up, dy, dgate_up;
};

/// Cross-entropy of softmax(x weight^T) against targets, in chunks of `chunk_rows` rows so that logits never exist whole.
/// Adds the nll of every row with target >= 0 to the StepResult; loss (1) f64 = their sum * inverse_targets. With dx and dweight present also the gradients of
/// nll * inverse_targets: dx written, dweight added to. x (N, C), weight (V, C), targets (N) i32, negative = not scored.
struct LinearCrossEntropyArgs {
  TensorView x, weight, targets, state, result, loss, dx, dweight;
  std::int64_t chunk_rows;
  void* workspace;
};

/// Where a component's rows are in a component-major weight: segment s holds rows_per_component[s] rows of every
/// component, in component order; segments follow each other. Gathered weights have the same layout with fewer components.
struct Segments {
  int count = 0;
  std::int64_t rows_per_component[3] = {};

  [[nodiscard]] constexpr std::int64_t rows() const {
    std::int64_t n = 0;
    for (int s = 0; s < count; ++s) n += rows_per_component[s];
    return n;
  }
};

/// y = the rows of the components in `indices` (k, ascending).   weight (n rows, C) -> y (k rows, C).
struct GatherComponentsArgs {
  TensorView weight, indices, y;
  Segments segments;
};

/// dweight[rows of component indices[i]] += dy[rows of i].
struct ScatterAddComponentsArgs {
  TensorView dy, indices, dweight;
  Segments segments;
};

/// y = x with the columns of component j multiplied by weight[j].   x (N, k * columns), weight (k). y may be x.
struct ScaleComponentsArgs {
  TensorView x, weight, y;
  std::int64_t columns;
};

/// scores[j] = ||x columns of j||_F ||weight rows of j||_F.   x (N, n * columns), weight (n * columns, C) -> scores (n).
struct ComponentScoresArgs {
  TensorView x, weight, scores;
  std::int64_t columns;
  void* workspace;
};

/// The k largest scores, ascending by index; ties go to the lower index.   scores (n) -> indices (k) i32.
struct SelectTopKArgs {
  TensorView scores, result, indices;
};

/// Exactly k components by a systematic draw with water-filled probabilities (reference: kernels/select.h).
/// scores (n) -> indices (k) i32, weights (k) = 1 / p, probabilities (n) i32 in units of 2^-24.
/// The offset comes from Philox(seed, step, layer, block), shifted by micro_batch / micro_batches.
struct SelectSketchArgs {
  TensorView scores, state, result, indices, weights, probabilities;
  double min_probability;
  std::int64_t layer, block;
};

/// sum of x^2 over all elements, in f64 -> y (1) f64.
struct SumOfSquaresArgs {
  TensorView x, y;
  void* workspace;
};

/// One AdamW update with global-norm clipping over flat lists; clears the gradient. Nothing is updated (and result.skipped
/// set) if the gradient norm, the loss or a component score was not finite.
/// weight, gradient, m, v (P) f32; the first `decayed` elements get decoupled weight decay. squares (1) f64: sum of squares
/// of the gradient. `rounded` (optional, bf16) receives the first elements of the new weights.
/// Source: Loshchilov & Hutter 2019; clipping as torch.nn.utils.clip_grad_norm_.
struct AdamwArgs {
  TensorView squares, state, gradient, weight, m, v, result, rounded;
  std::int64_t decayed;
  double beta1, beta2, eps, weight_decay, grad_clip;
};

/// y = the first elements of x, rounded to nearest even.   x (P) f32 -> y (n) bf16, n <= P.
struct RoundToBf16Args {
  TensorView x, y;
};

}  // namespace relume
