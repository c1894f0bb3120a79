// What the layers of a recorded training step cost, taken apart so that other steps can be put together from them.
#pragma once
#include <vector>

#include "relume/plan/choice.h"
#include "relume/plan/plan.h"

namespace relume {

/// Bytes and seconds of a step by where they are spent. arena_bytes() of these parts is the lower bound of the plan itself.
struct StepCosts {
  std::vector<LayerCost> layers;      ///< variance is not known here
  std::int64_t fixed_bytes = 0;       ///< live throughout all layers, saved by none
  std::int64_t head_bytes = 0;        ///< most live between the last layer's forward and backward, above what layers saved
  std::int64_t elsewhere_bytes = 0;   ///< most live before the first and after the last layer, without the update
  std::int64_t update_bytes = 0;      ///< most live in the update
  double head_s = 0, elsewhere_s = 0, update_s = 0;
};

/// `plan` has lifetimes (plan_lifetimes()); the tape has at least one block and was differentiated.
[[nodiscard]] StepCosts step_costs(const Tape& tape, const Plan& plan, const DeviceRates& rates);

}  // namespace relume
