#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "command.h"
#include "relume/base/units.h"
#include "relume/base/version.h"
#include "relume/train/metrics.h"
#include "relume/train/device_facts.h"

namespace relume::tools {

int run_bench_step(const BenchArguments& a) {
  const auto backend = make_backend(a.device, a.threads);
  Config config = config_of(a, backend->device());
  const DeviceRates rates = rates_for(a, config, *backend);
  const double peak = measure_peak_flops(*backend, config.precision);
  StepBench bench(config, *backend, rates);
  std::vector<double> times, losses;
  ProgressLine progress(stderr, 5, read_environment().colour);
  for (std::int64_t i = 0; i < a.warmup + a.steps; ++i) {
    double seconds = 0;
    losses.push_back(bench.step(i, seconds));
    if (i >= a.warmup) times.push_back(seconds);
    progress.show(fmt::format("step {}/{} | loss {:.4f} | {:.0f} ms", i + 1, a.warmup + a.steps, losses.back(), seconds * 1e3),
                  static_cast<double>(i + 1) / static_cast<double>(a.warmup + a.steps));
  }
  progress.finish();
  const double step_s = median(times), tokens = static_cast<double>(config.tokens_per_step());
  const double model_flops = model_flops_per_token(config.model, a.sequence) * tokens, executed = step_flops(bench.program().training, 1).executed;
  losses.erase(losses.begin(), losses.end() - std::min<std::ptrdiff_t>(3, std::ssize(losses)));
  const std::int64_t planned = bench.program().training.plan.peak_bytes();
  if (a.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"framework", fmt::format("relume {} ({})", version(), commit())},
                                              {"shape", a.shape},
                                              {"params", bench.program().layout.count},
                                              {"dtype", config.precision},
                                              {"recompute", a.recompute},
                                              {"batch", a.batch},
                                              {"seq", a.sequence},
                                              {"threads", backend->device().threads},
                                              {"device", backend->device().description},
                                              {"step_s", step_s},
                                              {"min_s", *std::min_element(times.begin(), times.end())},
                                              {"tok_per_s", tokens / step_s},
                                              {"peak_flops", peak},
                                              {"mfu", model_flops / step_s / peak},
                                              {"hfu", executed / step_s / peak},
                                              {"peak_rss_mib", peak_rss_bytes() >> 20},
                                              {"planned_bytes", planned},
                                              {"arena_bytes", bench.program().training.plan.arena_bytes},
                                              {"predicted_step_s", predicted_step_s(bench.program().training, 1, rates)},
                                              {"loss", losses}}
                           .dump());
  } else {
    fmt::print("{} {} {} {}x{}: {:.1f} tok/s ({:.3f} s a step), mfu {:.1f}%, hfu {:.1f}% of {:.0f} GFLOP/s, planned {}, process peak {}\n", a.shape, config.precision,
               a.recompute, a.batch, a.sequence, tokens / step_s, step_s, 100 * model_flops / step_s / peak, 100 * executed / step_s / peak, peak / 1e9,
               format_bytes(planned), format_bytes(peak_rss_bytes()));
  }
  return 0;
}

}  // namespace relume::tools
