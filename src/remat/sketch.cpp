// k components drawn with probabilities that follow the forward scores, weight 1 / p: unbiased.
#include "relume/remat/policy.h"

namespace relume {

extern const Selector kSketch;
const Selector kSketch{
    "sketch",
    [](const BlockRecord& r, Tensor into) { return component_scores(r.components, r.weight, r.columns, into); },
    [](Tensor scores, const Reduction& reduction, const SelectionContext& c) {
      return select_sketch(scores, c.state, c.result, reduction.k, reduction.min_probability, c.layer, c.block).selection;
    },
};

}  // namespace relume
