// The k components with the largest forward scores, weight 1: biased, and the closest single step to the exact gradient.
#include "relume/remat/policy.h"

namespace relume {

extern const Selector kGreedy;
const Selector kGreedy{
    "greedy",
    [](const BlockRecord& r, Tensor into) { return component_scores(r.components, r.weight, r.columns, into); },
    [](Tensor scores, const Reduction& reduction, const SelectionContext& c) { return select_top_k(scores, c.result, reduction.k); },
};

}  // namespace relume
