#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "bench.h"
#include "command.h"
#include "relume/base/version.h"
#include "relume/ops/ops.h"
#include "relume/train/metrics.h"
#include "relume/train/device_facts.h"

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

/// A product of the step, how often it is formed, and how long each implementation takes for it.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType dtype = DType::f32, result = DType::f32;
  std::int64_t calls = 0;
  std::vector<std::pair<std::string_view, double>> seconds = {};

  [[nodiscard]] double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  [[nodiscard]] auto key() const { return std::tuple(m, n, k, transpose_a, transpose_b, accumulate, dtype, result); }
  [[nodiscard]] const std::pair<std::string_view, double>& best() const {
    return *std::min_element(seconds.begin(), seconds.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  }
};

std::vector<Product> products_of(const Program& program) {
  std::map<decltype(Product{}.key()), Product> found;
  const auto add = [&](Product p, std::int64_t calls) { found.try_emplace(p.key(), p).first->second.calls += calls; };
  const Tape& tape = *program.training.tape;
  const auto value = [&](int v) -> const Value& { return tape.values()[static_cast<std::size_t>(v)]; };
  for (const PlannedNode& planned : program.training.plan.nodes) {
    const Node& node = tape.nodes()[static_cast<std::size_t>(planned.node)];
    if (node.op == &kMatmul) {
      const std::string_view form = matmul_form(node.attributes);
      const Value &a = value(node.in[0]), &c = value(node.out[0]);
      const bool tn = form == "tn", adds = node.in.size() > 3 && node.in[3] >= 0;
      add({c.shape[0], c.shape[1], tn ? a.shape[0] : a.shape[1], tn, form == "nt", adds, a.dtype, c.dtype}, 1);
    } else if (node.op == &kLinearCrossEntropy) {
      const Value &x = value(node.in[0]), &w = value(node.in[1]);
      const DType logits = accumulation_dtype(x.dtype);
      const std::int64_t rows = program.head_chunk_rows, chunks = (x.shape[0] + rows - 1) / rows, width = x.shape[1], vocabulary = w.shape[0];
      add({rows, vocabulary, width, false, true, false, x.dtype, logits}, chunks);
      add({rows, width, vocabulary, false, false, false, x.dtype, x.dtype}, chunks);
      add({vocabulary, width, rows, true, false, true, x.dtype, logits}, chunks);
    }
  }
  std::vector<Product> all;
  for (const auto& [key, p] : found) all.push_back(p);
  return all;
}

/// Median of a few runs of one implementation on buffers of its own, the first not counted.
double time_product(Backend& backend, const Product& p, const Kernel<MatmulArgs>& kernel) {
  constexpr int kRuns = 5;
  const auto buffer = [&](std::int64_t elements, DType dtype) {
    DeviceBuffer b(backend, elements * size_of(dtype));
    const std::vector<std::uint32_t> ones(static_cast<std::size_t>(b.bytes() + 3) / 4, dtype == DType::bf16 ? 0x3F803F80u : 0x3F800000u);
    backend.copy_to_device(b.data(), ones.data(), b.bytes());  // untouched pages would all be one cached page
    return b;
  };
  const DeviceBuffer a = buffer(p.m * p.k, p.dtype), b = buffer(p.k * p.n, p.dtype), c = buffer(p.m * p.n, p.result);
  MatmulArgs args{{a.data(), p.dtype, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}},
                  {b.data(), p.dtype, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}},
                  {c.data(), p.result, {p.m, p.n}},
                  {},
                  p.transpose_a,
                  p.transpose_b,
                  p.accumulate,
                  nullptr};
  const DeviceBuffer scratch = buffer(std::max<std::int64_t>(1, kernel.workspace_bytes(args)), DType::u8);
  args.workspace = scratch.data();
  std::vector<double> seconds;
  for (int i = 0; i <= kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernel.run(args, backend.stream());
    backend.synchronize();
    if (i > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return median(seconds);
}

}  // namespace

int run_bench_ops(const BenchArguments& a) {
  const auto backend = make_backend(a.device, a.threads);
  Config config = config_of(a, backend->device());
  const DeviceRates rates = rates_for(a, config, *backend);
  StepBench bench(config, *backend, rates);
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
  std::vector<Product> products = products_of(bench.program());
  double product_flops = 0, ceiling_s = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    Product& p = products[i];
    progress.show(fmt::format("product {}/{}", i + 1, products.size()), static_cast<double>(i) / static_cast<double>(products.size()));
    p.seconds.emplace_back("relume", time_product(*backend, p, backend->kernels().matmul));
    for (const MatmulVariant& v : backend->kernels().matmul_variants)
      if (v.kernel.run) p.seconds.emplace_back(v.name, time_product(*backend, p, v.kernel));
    product_flops += static_cast<double>(p.calls) * p.flops();
    ceiling_s += static_cast<double>(p.calls) * p.best().second;
  }
  progress.finish();
  nlohmann::ordered_json product_rows = nlohmann::ordered_json::array();
  if (!a.json) fmt::print("\nproducts alone, GFLOP/s\n{:>6} {:>7} {:>7}  {:>3}", "m", "n", "k", "");
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    nlohmann::ordered_json row{{"m", p.m}, {"n", p.n}, {"k", p.k}, {"form", p.transpose_a ? "tn" : p.transpose_b ? "nt" : "nn"}, {"calls", p.calls}};
    if (!a.json && i == 0) {
      for (const auto& [name, s] : p.seconds) fmt::print(" {:>9}", name);
      fmt::print("\n");
    }
    if (!a.json) fmt::print("{:6} {:7} {:7}  {:>3}", p.m, p.n, p.k, p.transpose_a ? "tn" : p.transpose_b ? "nt" : "nn");
    for (const auto& [name, s] : p.seconds) {
      row[std::string(name)] = p.flops() / s / 1e9;
      if (!a.json) fmt::print(" {:9.1f}", p.flops() / s / 1e9);
    }
    if (!a.json) fmt::print("\n");
    product_rows.push_back(row);
  }
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"framework", fmt::format("relume {} ({})", version(), commit())}, {"shape", a.shape}, {"dtype", config.precision},
                                              {"recompute", a.recompute}, {"batch", a.batch}, {"seq", a.sequence}, {"device", backend->device().description},
                                              {"peak_flops", peak}, {"step_s", step_s}, {"matmul_ceiling_s", ceiling_s}, {"kernels", rows},
                                              {"products", product_rows}}
                           .dump());
  else
    fmt::print("\nkernels {:.3f} s of a step of {:.3f} s; products at the best rate above {:.3f} s ({:.0f} GFLOP/s): the step runs at {:.1f} % of that ceiling\n"
               "{} matrix product at start-up {:.0f} GFLOP/s; {}\n",
               all, step_s, ceiling_s, product_flops / ceiling_s / 1e9, 100 * ceiling_s / step_s, config.precision, peak / 1e9, backend->device().description);
  return 0;
}

}  // namespace relume::tools
