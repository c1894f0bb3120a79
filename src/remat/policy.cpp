#include "relume/remat/policy.h"

#include <cmath>

#include "relume/base/check.h"
#include "relume/base/selection.h"

namespace relume {

extern const Selector kGreedy, kSketch;

std::span<const Selector* const> selectors() {
  static const Selector* const all[] = {&kGreedy, &kSketch};
  return all;
}

RematDecision decide(const BlockPolicy& policy, const std::string& kind, std::int64_t components) {
  CHECK(!policy.automatic());
  if (policy.policy == "store") return {};
  RematDecision d{.keep_all = false};
  if (policy.policy == "selective") {  // drops what costs next to nothing to compute again
    d.keep = kind == "attention" ? std::set<std::string>{"qkv", "attn_out"} : std::set<std::string>{"gate_up"};
  } else if (policy.policy == "exact") {
    d.keep = {policy.keep.begin(), policy.keep.end()};
  } else {
    d.reduction = {policy.policy, policy.selected(components), policy.min_probability};
  }
  return d;
}

double expected_relative_variance(const BlockPolicy& policy) {
  if (!policy.approximate()) return 0;
  constexpr std::int64_t kComponents = 1024;
  constexpr double kLogDeviation = 0.5;
  std::vector<double> scores;  // quantiles, the largest last; the inverse of the normal distribution by bisection of erfc
  for (std::int64_t j = 0; j < kComponents; ++j) {
    const double share = (static_cast<double>(j) + 0.5) / static_cast<double>(kComponents);
    double low = -8, high = 8;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
    }
    scores.push_back(std::exp(kLogDeviation * low));
  }
  const std::int64_t k = policy.selected(kComponents);
  std::vector<std::int32_t> probabilities(scores.size(), static_cast<std::int32_t>(kDrawUnit));
  if (policy.policy == "sketch") water_fill(scores.data(), kComponents, k, policy.min_probability, probabilities.data());
  double all = 0, lost = 0;
  for (std::int64_t j = 0; j < kComponents; ++j) {
    const double energy = scores[static_cast<std::size_t>(j)] * scores[static_cast<std::size_t>(j)];
    const double p = static_cast<double>(probabilities[static_cast<std::size_t>(j)]) / static_cast<double>(kDrawUnit);
    all += energy;
    lost += policy.policy == "sketch" ? (1 / p - 1) * energy : j < kComponents - k ? energy : 0;
  }
  return lost / all;
}

void apply(const RematDecision& decision, const SelectionContext& context, BlockSpec& spec) {
  spec.keep_all = decision.keep_all;
  spec.keep = decision.keep;
  if (!decision.reduction) return;
  const Selector* selector = nullptr;
  for (const Selector* s : selectors())
    if (s->name == decision.reduction->selector) selector = s;
  CHECK(selector);
  spec.profile = [selector, into = context.scores](const BlockRecord& r) { return selector->profile(r, into); };
  spec.select = [selector, reduction = *decision.reduction, context](Tensor profile) {
    return selector->select(profile, reduction, context);
  };
}

}  // namespace relume
