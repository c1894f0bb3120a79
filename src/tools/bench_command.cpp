#include "bench.h"
#include "command.h"

namespace relume::tools {

void add_bench(CLI::App& app, Action& action) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* c = app.add_subcommand("bench", "measure speed")->require_subcommand(1);
  const auto options = [&a](CLI::App* s) {
    s->add_option("--shape", a->shape, "model")->check(CLI::IsMember({"11m", "30m", "488m"}));
    s->add_option("--batch", a->batch, "sequences")->check(CLI::PositiveNumber);
    s->add_option("--seq", a->sequence, "tokens of a sequence")->check(CLI::PositiveNumber);
    s->add_option("--steps", a->steps, "timed steps")->check(CLI::PositiveNumber);
    s->add_option("--warmup", a->warmup, "steps before")->check(CLI::NonNegativeNumber);
    s->add_option("--precision", a->precision, "dtype")->check(CLI::IsMember({"fp32", "bf16", "auto"}));
    s->add_option("--recompute", a->recompute, "policy of every block")->check(CLI::IsMember({"store", "selective", "exact", "greedy", "sketch", "auto"}));
    s->add_option("--fraction", a->fraction, "greedy, sketch: share of components")->check(CLI::Range(0.0, 1.0));
    s->add_option("--activations", a->activations, "auto: budget as a share of the activation memory that storing everything takes")->check(CLI::Range(0.0, 10.0));
    s->add_option("--device", a->device, "where to run")->check(CLI::IsMember({"cpu", "cuda"}));
    s->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
    s->add_flag("--json", a->json, "print one JSON object");
    return s;
  };
  options(c->add_subcommand("step", "a whole training step on random tokens"))->callback([a, &action] { action = [a] { return run_bench_step(*a); }; });
  options(c->add_subcommand("ops", "every kernel of that step: time, GFLOP/s, GB/s and share of the measured peak"))->callback([a, &action] {
    action = [a] { return run_bench_ops(*a); };
  });
  CLI::App* plans = options(c->add_subcommand("plans", "plans for shares of the activation memory against storing everything, predicted and measured"));
  plans->add_option("--shares", a->shares, "of the activation memory, as 0.75,0.5")->delimiter(',')->check(CLI::Range(0.0, 1.0));
  plans->callback([a, &action] { action = [a] { return run_bench_plans(*a); }; });
  CLI::App* plan = options(c->add_subcommand("plan", "planning itself: measuring options, choice, recording, placement"));
  plan->add_option("--layers", a->layers, "instead of the shape's")->check(CLI::PositiveNumber);
  plan->add_flag("--fine", a->fine, "choose among all sets of kept values");
  plan->callback([a, &action] { action = [a] { return run_bench_plan(*a); }; });
}

}  // namespace relume::tools
