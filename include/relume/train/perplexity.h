// Three perplexities, as three communities compute them: which windows of a token sequence a model sees, and which targets count.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "relume/train/evaluation.h"

namespace relume {

/// Windows to score. A model sees each from position 0 with nothing before it.
struct ScoringWindows {
  std::int64_t length = 0;      ///< inputs of a window
  std::int64_t count = 0;
  std::int64_t scored_each = 0; ///< targets a whole window scores
  NextWindow next;
};

using TokenSequence = std::shared_ptr<const std::vector<std::int32_t>>;

/// Validation: windows of `context` inputs and their targets, one token later; the rest that fills no window is left out.
[[nodiscard]] ScoringWindows shard_windows(TokenSequence tokens, std::int64_t context);

/// Hugging Face's "perplexity of fixed-length models", with exact weights: windows of `context` tokens every `stride`, each scoring what
/// the one before has not; with stride = context disjoint blocks, whose first tokens are not scored. The last window may be short.
[[nodiscard]] ScoringWindows hf_windows(TokenSequence tokens, std::int64_t context, std::int64_t stride);

/// llama.cpp's perplexity tool: disjoint chunks, of which the second half is scored. `bos` (>= 0) stands in for the first token of every
/// chunk. Throws kFile for less than two chunks.
[[nodiscard]] ScoringWindows llamacpp_windows(TokenSequence tokens, std::int64_t context, std::int32_t bos);
/// llama.cpp's --ppl-stride: windows of context + stride / 2 tokens every `stride`, each scoring its last `stride`.
[[nodiscard]] ScoringWindows llamacpp_stride_windows(TokenSequence tokens, std::int64_t context, std::int64_t stride);

/// Words of a text as lm-evaluation-harness counts them: one more than there are runs of white space.
[[nodiscard]] std::int64_t count_words(std::string_view text);

}  // namespace relume
