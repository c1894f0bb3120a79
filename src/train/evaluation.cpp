#include "relume/train/evaluation.h"

#include <cmath>
#include <unordered_map>

namespace relume {

double EvaluationResult::perplexity() const { return std::exp(mean_nll()); }
double EvaluationResult::unigram_perplexity() const { return std::exp(unigram_nll / static_cast<double>(tokens_scored)); }

double EvaluationResult::standard_error() const {
  if (tokens_scored < 2) return 0;
  const double n = static_cast<double>(tokens_scored), variance = nll_squared / n - mean_nll() * mean_nll();
  return perplexity() * std::sqrt(std::max(0.0, variance) / (n - 1));
}

EvaluationResult evaluate(Executor& executor, Memory& memory, std::int64_t sequences, std::int64_t tokens, const NextWindow& next,
                          const std::function<void(std::int64_t)>& progress) {
  EvaluationResult result;
  std::unordered_map<std::int32_t, std::int64_t> counts;
  const std::int64_t rows = sequences * tokens;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows)), targets(static_cast<std::size_t>(rows));
  StepResult kept;  // the count of optimizer updates lives here too
  memory.read(names::kResult, &kept, 1);
  for (bool more = true; more;) {
    std::int64_t filled = 0;
    for (; filled < sequences; ++filled)
      if (more = next(ids.data() + filled * tokens, targets.data() + filled * tokens); !more) break;
    if (filled == 0) break;
    std::fill(ids.begin() + filled * tokens, ids.end(), 0);
    std::fill(targets.begin() + filled * tokens, targets.end(), -100);
    for (std::int32_t t : targets)
      if (t >= 0) {
        ++counts[t];
        ++result.tokens_scored;
      }
    const StepState state{.inverse_targets = 1};
    const StepResult clear{.updates = kept.updates};
    memory.write(names::kState, &state, 1);
    memory.write(names::kResult, &clear, 1);
    memory.write(names::kTokens, ids.data(), rows);
    memory.write(names::kTargets, targets.data(), rows);
    executor.run_micro_batch();
    StepResult batch;
    memory.read(names::kResult, &batch, 1);
    result.nll += batch.nll;
    result.nll_squared += batch.nll_squared;
    result.windows += filled;
    if (progress) progress(result.windows);
  }
  memory.write(names::kResult, &kept, 1);
  for (const auto& [token, count] : counts)
    result.unigram_nll -= static_cast<double>(count) * std::log(static_cast<double>(count) / static_cast<double>(result.tokens_scored));
  return result;
}

}  // namespace relume
