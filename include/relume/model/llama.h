// Llama recorded on a tape, as Hugging Face defines it.
#pragma once
#include <map>
#include <string>

#include "relume/model/parameters.h"
#include "relume/remat/policy.h"

namespace relume {

/// What a recording is for. N = sequences * tokens rows.
struct GraphShape {
  std::int64_t sequences = 1, tokens = 1;
  std::int64_t head_chunk_rows = 1;     ///< rows whose logits exist at a time
  DType dtype = DType::f32;             ///< of activations and matrices; master weights, statistics and gradients of weights have
                                        ///< its accumulation dtype. f64 for gradient checks
  bool training = true;                 ///< gradients and optimizer state exist
  std::int64_t cache_tokens = 0;        ///< > 0: the tokens continue one sequence, whose keys and values so far are in persistent caches of
                                        ///< so many tokens; the rope table has the angles of the positions at hand. Not for training
  bool keep_scores = false;             ///< scores of components are persistent, so that the host can read them after a step
};

/// Names of persistent values, by which the host finds them in Memory.
namespace names {
inline constexpr const char *kTokens = "tokens", *kTargets = "targets", *kState = "step_state", *kResult = "step_result",
                            *kParameters = "parameters", *kGradients = "gradients", *kFirstMoment = "adam_m",
                            *kSecondMoment = "adam_v", *kRopeTable = "rope_table", *kMatricesBf16 = "matrices_bf16", *kScores = "component_scores",
                            *kLogits = "logits";
}

/// The persistent values of generation on a tape: what `tokens` tokens at a time need as input, and what is there once. A training tape
/// that declares them too has their memory in its plan.
struct GenerationInputs {
  Tensor tokens, rope_table;
};
[[nodiscard]] GenerationInputs generation_inputs(Tape& tape, const ModelConfig& model, std::int64_t tokens);
[[nodiscard]] Tensor key_value_cache(Tape& tape, const ModelConfig& model, std::int64_t layer, std::int64_t cache_tokens, DType dtype);
[[nodiscard]] Tensor generation_logits(Tape& tape, const ModelConfig& model);
namespace names {
[[nodiscard]] std::string generation(const char* name, std::int64_t tokens);  ///< kTokens or kRopeTable of that many
}

/// Where the persistent scores of a block lie: each layer's attention groups, then its FFN neurons.
struct ScoreRange {
  std::int64_t offset = 0, count = 0;
};
[[nodiscard]] ScoreRange score_range(const ModelConfig& model, std::int64_t layer, std::string_view kind);

/// Decides a block's backward. Tests plug in their own.
using DecideBlock = std::function<void(std::int64_t layer, const std::string& kind, const SelectionContext&, BlockSpec&)>;

/// Declares the persistent values of a Llama on a tape and records its parts.
class Llama {
 public:
  Llama(Tape& tape, const ModelConfig& model, const ParameterLayout& layout, const GraphShape& shape);

  /// Token ids to the final norm: (N, hidden_size). Layers follow `remat`.
  Tensor forward(const RematConfig& remat);
  Tensor forward(const DecideBlock& decide);
  /// One block of a layer ("attention" or "ffn") on an input of shape (N, hidden_size).
  Tensor block(std::int64_t layer, const std::string& kind, Tensor x, const DecideBlock& decide);
  /// Chunked head and cross-entropy on the output of forward(); adds to the StepResult.
  Tensor loss(Tensor final_norm);
  /// Adds the logits of one row to the persistent "logits" (1, vocab_size) f32.
  void logits(Tensor final_norm);
  /// Gradient norm, clipping and AdamW over all parameters.
  void update(const OptimizerConfig& optimizer);

  [[nodiscard]] Tensor parameter(const std::string& name) const { return parameter_.at(name); }
  [[nodiscard]] Tensor head() const { return parameter_.at(model_.tie_word_embeddings ? "embedding" : "lm_head"); }

 private:
  BlockRecord attention_block(std::int64_t layer, Tensor x, const Selection* selection) const;
  BlockRecord ffn_block(std::int64_t layer, Tensor x, const Selection* selection) const;
  Tensor layer_parameter(std::int64_t layer, const char* name) const;

  Tape& tape_;
  const ModelConfig model_;
  const ParameterLayout& layout_;
  GraphShape shape_;
  std::map<std::string, Tensor> parameter_;
  Tensor tokens_, targets_, state_, result_, rope_table_, flat_, flat_gradient_, matrices_bf16_, scores_;
};

/// Records, in f32 memory of parameters and with their bf16 copy, the node that fills the copy.
void record_rounding(Tape& tape, const ParameterLayout& layout);

/// Cosines and sines of the rotary angles, (tokens, head_dim), in fp32 as transformers computes them.
[[nodiscard]] std::vector<float> rope_table(const ModelConfig& model, std::int64_t tokens, std::int64_t first_position = 0);

/// Flops of one token's forward and backward without recompute: 6 per matmul weight, and causal attention.
[[nodiscard]] double model_flops_per_token(const ModelConfig& model, std::int64_t tokens);

}  // namespace relume
