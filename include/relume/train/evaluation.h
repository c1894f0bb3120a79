// Perplexity of a model on windows of tokens.
#pragma once
#include <functional>

#include "relume/train/program.h"

namespace relume {

struct EvaluationResult {
  std::int64_t windows = 0, tokens_scored = 0;
  double nll = 0;                 ///< sum over scored tokens, nats
  double nll_squared = 0;
  double unigram_nll = 0;         ///< of the same targets under their own token frequencies: the best a unigram model can do

  [[nodiscard]] double mean_nll() const { return nll / static_cast<double>(tokens_scored); }
  [[nodiscard]] double perplexity() const;
  [[nodiscard]] double unigram_perplexity() const;
  /// Standard error of the perplexity, as llama.cpp computes it; 0 for fewer than two tokens.
  [[nodiscard]] double standard_error() const;
};

/// Writes the next window's inputs and targets (-100 = not scored) and returns true, or returns false at the end.
using NextWindow = std::function<bool(std::int32_t* tokens, std::int32_t* targets)>;

/// Scores windows until there are no more. The executor's tape is an evaluation tape of `sequences` windows of `tokens`;
/// a last incomplete batch is filled with windows that do not count. Sums are in f64. `progress` is called after each batch.
[[nodiscard]] EvaluationResult evaluate(Executor& executor, Memory& memory, std::int64_t sequences, std::int64_t tokens,
                                        const NextWindow& next, const std::function<void(std::int64_t windows)>& progress = {});

}  // namespace relume
