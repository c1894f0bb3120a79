#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "relume/base/error.h"
#include "relume/plan/placement.h"

namespace relume::tools {

/// How long planning takes, part by part, for the shape with another number of layers.
int run_bench_plan(const BenchArguments& a) {
  const auto backend = make_null_backend(make_cpu_backend({.threads = static_cast<int>(a.threads)}));
  BenchArguments automatic = a;
  automatic.recompute = "auto";
  Config config = config_of(automatic, backend->device());
  if (a.layers > 0) config.model.num_hidden_layers = a.layers;
  config.memory.fine = a.fine;
  const KernelTable& kernels = backend->kernels();
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> seconds(4);
  const auto timed = [&](std::size_t part, const auto& work) {
    const auto start = Clock::now();
    auto result = work();
    seconds[part].push_back(std::chrono::duration<double>(Clock::now() - start).count());
    return result;
  };
  std::size_t options = 0, buffers = 0;
  for (std::int64_t i = 0; i < a.warmup + a.steps; ++i) {
    const RematPlanner planner = timed(0, [&] { return RematPlanner(config, kernels, {}); });
    const std::int64_t budget = planner.persistent_bytes() + static_cast<std::int64_t>(a.activations * static_cast<double>(planner.store_arena_bytes()));
    const auto chosen = timed(1, [&] { return planner.choose(budget); });
    if (!chosen) throw Error(ErrorCode::kBudget, fmt::format("--activations {}: nothing fits; the smallest is {:.3f}", a.activations,
                                                             static_cast<double>(planner.minimum_bytes() - planner.persistent_bytes()) / static_cast<double>(planner.store_arena_bytes())));
    config.remat = chosen->remat;
    const ParameterLayout layout = make_parameter_layout(config.model);
    const Plan plan = timed(2, [&] { return plan_lifetimes(*record_training(config, layout, chosen->head_chunk_rows), kernels); });
    std::vector<Lifetime> lifetimes;
    for (const Buffer& b : plan.buffers) lifetimes.push_back(b.lifetime);
    const Placement placement = timed(3, [&] { return place(lifetimes); });
    if (placement.arena_bytes != plan.lower_bound_bytes) fmt::print("placement needs {:.4f} of the lower bound\n", static_cast<double>(placement.arena_bytes) / static_cast<double>(plan.lower_bound_bytes));
    config.remat = config_of(automatic, backend->device()).remat;
    options = planner.options().size();
    buffers = lifetimes.size();
  }
  std::vector<double> ms;
  for (const auto& part : seconds) ms.push_back(1e3 * median(part));
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"layers", config.model.num_hidden_layers}, {"options", options}, {"buffers", buffers}, {"measure_options_ms", ms[0]},
                                              {"choose_ms", ms[1]}, {"record_ms", ms[2]}, {"place_ms", ms[3]}}
                           .dump());
  else
    fmt::print("{} layers, {} options: measuring options {:.1f} ms, choice {:.1f} ms, recording {:.1f} ms, placing {} buffers {:.1f} ms\n", config.model.num_hidden_layers, options,
               ms[0], ms[1], ms[2], buffers, ms[3]);
  return 0;
}

}  // namespace relume::tools
