#pragma once
#include "relume/config/config.h"

namespace relume {

/// Learning rate of step 0 … schedule.steps - 1: linear warm-up, then the schedule's shape. The last step's rate is
/// final_fraction * learning_rate for every schedule but "constant". Steps past the end get the last rate.
[[nodiscard]] double learning_rate(const OptimizerConfig& optimizer, const ScheduleConfig& schedule, std::int64_t step);

}  // namespace relume
