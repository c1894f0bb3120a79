#include "relume/remat/policy.h"

#include <cmath>

#include "relume/base/check.h"

namespace relume {

extern const Selector kGreedy, kSketch;

std::span<const Selector* const> selectors() {
  static const Selector* const all[] = {&kGreedy, &kSketch};
  return all;
}

RematDecision decide(const BlockPolicy& policy, const std::string& kind, std::int64_t components) {
  if (policy.policy == "store") return {};
  RematDecision d{.keep_all = false};
  if (policy.policy == "selective") {  // drops what costs next to nothing to compute again
    d.keep = kind == "attention" ? std::set<std::string>{"qkv", "attn_out"} : std::set<std::string>{"gate_up"};
  } else if (policy.policy == "exact") {
    d.keep = {policy.keep.begin(), policy.keep.end()};
  } else {
    const std::int64_t k = std::llround(policy.fraction * static_cast<double>(components));
    d.reduction = {policy.policy, k, policy.min_probability};
  }
  return d;
}

void apply(const RematDecision& decision, const SelectionContext& context, BlockSpec& spec) {
  spec.keep_all = decision.keep_all;
  spec.keep = decision.keep;
  if (!decision.reduction) return;
  const Selector* selector = nullptr;
  for (const Selector* s : selectors())
    if (s->name == decision.reduction->selector) selector = s;
  CHECK(selector);
  spec.profile = selector->profile;
  spec.select = [selector, reduction = *decision.reduction, context](Tensor profile) {
    return selector->select(profile, reduction, context);
  };
}

}  // namespace relume
