#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "command.h"
#include "relume/base/version.h"
#include "relume/ops/ops.h"
#include "relume/train/metrics.h"
#include "relume/train/trainer.h"

namespace relume::tools {

namespace {

/// All nodes of a step that do the same work: one op on the same shapes.
struct Kind {
  std::int64_t calls = 0;  ///< a step
  Cost cost;               ///< of one call
  std::vector<double> seconds;
};

std::string describe(const Tape& tape, const Node& node) {
  std::string text(node.op == &kMatmul ? fmt::format("matmul {}", matmul_form(node.attributes)) : std::string(node.op->name));
  const auto shapes = [&](const std::vector<int>& values, std::size_t most) {
    std::string list;
    for (std::size_t i = 0; i < std::min(most, values.size()); ++i) {
      if (values[i] < 0) continue;
      const Value& v = tape.values()[static_cast<std::size_t>(values[i])];
      list += fmt::format(" {}{}", v.shape.to_string(), v.dtype == DType::f32 ? "" : std::string(" ") + std::string(to_string(v.dtype)));
    }
    return list;
  };
  text += shapes(node.in, 2) + " ->" + shapes(node.out, 1);
  if (node.op == &kMatmul && node.in.size() > 2) text += node.in[2] >= 0 ? " + residual" : node.in.size() > 3 && node.in[3] >= 0 ? " +=" : "";
  return text;
}

}  // namespace

int run_bench_ops(const BenchArguments& a) {
  const auto backend = make_backend("auto", a.threads);
  const Config config = config_of(a, backend->device());
  StepBench bench(config, *backend);
  const double peak = measure_peak_flops(*backend, config.precision);
  const Recording& recording = bench.program().training;
  ProgressLine progress(stderr, 5, read_environment().colour);

  std::map<std::string, Kind> kinds;
  std::vector<std::string> kind_of;
  for (const PlannedNode& planned : recording.plan.nodes) {
    kind_of.push_back(describe(*recording.tape, recording.tape->nodes()[static_cast<std::size_t>(planned.node)]));
    Kind& k = kinds[kind_of.back()];
    ++k.calls;
    k.cost = planned.cost;
  }
  std::vector<double> steps;
  for (std::int64_t i = 0; i < a.warmup + a.steps; ++i) {
    std::vector<double> seconds(recording.plan.nodes.size());
    bench.executor().time_nodes(&seconds);
    double step_s = 0;
    bench.step(i, step_s);
    progress.show(fmt::format("step {}/{}", i + 1, a.warmup + a.steps), static_cast<double>(i + 1) / static_cast<double>(a.warmup + a.steps));
    if (i < a.warmup) continue;
    steps.push_back(step_s);
    for (std::size_t n = 0; n < seconds.size(); ++n) kinds[kind_of[n]].seconds.push_back(seconds[n]);
  }
  progress.finish();

  std::vector<std::pair<double, std::string>> order;  // seconds a step
  double all = 0;
  for (const auto& [name, k] : kinds) {
    order.emplace_back(median(k.seconds) * static_cast<double>(k.calls), name);
    all += order.back().first;
  }
  std::sort(order.rbegin(), order.rend());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (!a.json) fmt::print("{:>6} {:>6} {:>9} {:>9} {:>7} {:>7}  kernel\n", "share", "calls", "ms each", "GFLOP/s", "% peak", "GB/s");
  for (const auto& [total, name] : order) {
    const Kind& k = kinds[name];
    const double s = median(k.seconds), flops = k.cost.flops / s, bytes = (k.cost.bytes_read + k.cost.bytes_written) / s;
    if (a.json)
      rows.push_back({{"kernel", name}, {"calls", k.calls}, {"ms", s * 1e3}, {"share", total / all}, {"gflops", flops / 1e9}, {"peak_share", flops / peak}, {"gbytes_per_s", bytes / 1e9}});
    else
      fmt::print("{:5.1f}% {:6} {:9.3f} {:9.1f} {:6.1f}% {:7.1f}  {}\n", 100 * total / all, k.calls, s * 1e3, flops / 1e9, 100 * flops / peak, bytes / 1e9, name);
  }
  const double step_s = median(steps);
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"framework", fmt::format("relume {} ({})", version(), commit())}, {"shape", a.shape}, {"dtype", config.precision},
                                              {"recompute", a.recompute}, {"batch", a.batch}, {"seq", a.sequence}, {"device", backend->device().description},
                                              {"peak_flops", peak}, {"step_s", step_s}, {"kernels", rows}}
                           .dump());
  else
    fmt::print("kernels {:.3f} s of a step of {:.3f} s; {} matrix product at start-up {:.0f} GFLOP/s; {}\n", all, step_s, config.precision, peak / 1e9,
               backend->device().description);
  return 0;
}

}  // namespace relume::tools
