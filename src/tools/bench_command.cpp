#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "command.h"
#include "relume/base/units.h"
#include "relume/base/version.h"
#include "relume/train/metrics.h"
#include "relume/train/program.h"
#include "relume/train/trainer.h"

namespace relume::tools {

namespace {

struct BenchArguments {
  std::string shape = "11m", precision = "fp32", recompute = "store";
  std::int64_t batch = 4, sequence = 256, steps = 6, warmup = 2, threads = 0;
  double fraction = 2.0 / 3.0;
  bool json = false;
};

ModelConfig model_of(const std::string& shape, std::int64_t tokens) {
  ModelConfig m;
  const auto set = [&](std::int64_t v, std::int64_t d, std::int64_t l, std::int64_t h, std::int64_t f) {
    m.vocab_size = v, m.hidden_size = d, m.num_hidden_layers = l, m.num_attention_heads = h, m.intermediate_size = f;
  };
  if (shape == "11m") set(4096, 256, 8, 4, 768);
  if (shape == "30m") set(8192, 384, 10, 6, 1152);
  if (shape == "488m") set(32000, 1152, 26, 18, 3072);
  m.max_position_embeddings = std::max<std::int64_t>(tokens, 2048);
  return m;
}

Config config_of(const BenchArguments& a, const DeviceInfo& device) {
  Config c;
  c.model = model_of(a.shape, a.sequence);
  c.data.sequence_length = a.sequence;
  c.batch.micro_batch_size = a.batch;
  c.precision = resolve_precision(a.precision, device);
  c.optimizer.learning_rate = 1e-3;
  const BlockPolicy policy{.policy = a.recompute, .fraction = a.fraction, .min_probability = std::min(0.35, a.fraction)};
  c.remat.defaults = {policy, policy};
  return c;
}

/// The training step of a config on random tokens.
class StepBench {
 public:
  StepBench(const Config& config, Backend& backend) : config_(config), program_(make_program(config, backend.kernels())), memory_(backend) {
    memory_.add(*program_.training.tape, program_.training.plan);
    memory_.allocate();
    const auto table = rope_table(config.model, config.data.sequence_length);
    memory_.write(names::kRopeTable, table.data(), static_cast<std::int64_t>(table.size()));
    std::vector<float> values;
    for (const Parameter& p : program_.layout.parameters) {
      values.resize(static_cast<std::size_t>(p.shape.elements()));
      initialize(p, config.model, 0, values.data());
      backend.copy_to_device(memory_.persistent(names::kParameters) + p.offset * 4, values.data(), p.shape.elements() * 4);
    }
    refresh_derived_weights(program_.layout, memory_);
    executor_.emplace(*program_.training.tape, program_.training.plan, memory_);
  }

  /// Returns the loss before the update; seconds go to `step_s`.
  double step(std::int64_t index, double& step_s) {
    const std::int64_t rows = config_.micro_batch_tokens(), length = config_.data.sequence_length;
    std::mt19937 random(static_cast<unsigned>(index));
    std::uniform_int_distribution<std::int32_t> uniform(0, static_cast<std::int32_t>(config_.model.vocab_size) - 1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows)), targets(tokens.size());
    for (std::int64_t s = 0; s < config_.batch.micro_batch_size; ++s) {
      std::int32_t next = uniform(random);
      for (std::int64_t t = 0; t < length; ++t) {
        tokens[static_cast<std::size_t>(s * length + t)] = next;
        targets[static_cast<std::size_t>(s * length + t)] = next = uniform(random);
      }
    }
    const StepState state{.seed = 1, .step = index, .learning_rate = config_.optimizer.learning_rate, .inverse_targets = 1 / static_cast<double>(rows)};
    const StepResult clear{.updates = index};
    const auto start = std::chrono::steady_clock::now();
    memory_.write(names::kState, &state, 1);
    memory_.write(names::kResult, &clear, 1);
    memory_.write(names::kTokens, tokens.data(), rows);
    memory_.write(names::kTargets, targets.data(), rows);
    executor_->run_micro_batch();
    executor_->run_update();
    StepResult result;
    memory_.read(names::kResult, &result, 1);
    step_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result.nll / static_cast<double>(rows);
  }

  [[nodiscard]] const Program& program() const { return program_; }

 private:
  const Config& config_;
  Program program_;
  Memory memory_;
  std::optional<Executor> executor_;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

int run_step(const BenchArguments& a) {
  const auto backend = make_backend("auto", a.threads);
  const Config config = config_of(a, backend->device());
  const double peak = measure_peak_flops(*backend);
  StepBench bench(config, *backend);
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
                                              {"loss", losses}}
                           .dump());
  } else {
    fmt::print("{} {} {} {}x{}: {:.1f} tok/s ({:.3f} s a step), mfu {:.1f}%, hfu {:.1f}% of {:.0f} GFLOP/s, planned {}, process peak {}\n", a.shape, config.precision,
               a.recompute, a.batch, a.sequence, tokens / step_s, step_s, 100 * model_flops / step_s / peak, 100 * executed / step_s / peak, peak / 1e9,
               format_bytes(planned), format_bytes(peak_rss_bytes()));
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* c = app.add_subcommand("bench", "measure speed")->require_subcommand(1);
  CLI::App* step = c->add_subcommand("step", "a whole training step on random tokens");
  step->add_option("--shape", a->shape, "model")->check(CLI::IsMember({"11m", "30m", "488m"}));
  step->add_option("--batch", a->batch, "sequences")->check(CLI::PositiveNumber);
  step->add_option("--seq", a->sequence, "tokens of a sequence")->check(CLI::PositiveNumber);
  step->add_option("--steps", a->steps, "timed steps")->check(CLI::PositiveNumber);
  step->add_option("--warmup", a->warmup, "steps before")->check(CLI::NonNegativeNumber);
  step->add_option("--precision", a->precision, "dtype")->check(CLI::IsMember({"fp32", "bf16", "auto"}));
  step->add_option("--recompute", a->recompute, "policy of every block")->check(CLI::IsMember({"store", "selective", "exact", "greedy", "sketch"}));
  step->add_option("--fraction", a->fraction, "greedy, sketch: share of components")->check(CLI::Range(0.0, 1.0));
  step->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  step->add_flag("--json", a->json, "print one JSON object");
  step->callback([a, &action] { action = [a] { return run_step(*a); }; });
}

}  // namespace relume::tools
