#include "relume/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace relume {

double learning_rate(const OptimizerConfig& optimizer, const ScheduleConfig& s, std::int64_t step) {
  const double peak = optimizer.learning_rate;
  if (step < s.warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps);
  // Share of the way from the first full-rate step to the last one.
  const auto share = [&](std::int64_t first) {
    const std::int64_t last = s.steps - 1;
    return step >= last ? 1.0 : std::max(0.0, static_cast<double>(step - first) / static_cast<double>(last - first));
  };
  const double fall = 1 - s.final_fraction;
  if (s.name == "cosine") return peak * (s.final_fraction + fall * 0.5 * (1 + std::cos(std::numbers::pi * share(s.warmup_steps))));
  if (s.name == "linear") return peak * (1 - fall * share(s.warmup_steps));
  if (s.name == "wsd") {
    const auto decay_steps = static_cast<std::int64_t>(std::llround(s.decay_fraction * static_cast<double>(s.steps)));
    return peak * (1 - fall * share(std::max(s.warmup_steps, s.steps - 1 - decay_steps)));
  }
  return peak;
}

}  // namespace relume
