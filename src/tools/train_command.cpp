#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "command.h"
#include "relume/base/units.h"
#include "relume/train/plan_report.h"
#include "relume/train/trainer.h"

namespace relume::tools {

namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume, plan;
  std::int64_t steps = 0, threads = 0;
  bool json = false;
};

void print_json(const TrainSummary& s) {
  nlohmann::ordered_json j{{"steps", s.steps}, {"final_loss", s.final_loss}};
  j["validation_loss"] = s.evaluated ? nlohmann::ordered_json(s.validation_loss) : nullptr;
  j["validation_perplexity"] = s.evaluated ? nlohmann::ordered_json(s.validation_perplexity) : nullptr;
  j.update({{"tok_per_s", s.tokens_per_s},
            {"planned_bytes", s.planned_bytes},
            {"arena_bytes", s.arena_bytes},
            {"touched_bytes", s.touched_bytes},
            {"predicted_step_s", s.predicted_step_s},
            {"measured_step_s", s.measured_step_s},
            {"peak_rss_bytes", s.peak_rss_bytes},
            {"skipped", s.skipped},
            {"checkpoint", s.checkpoint}});
  fmt::print("{}\n", j.dump());
}

int run(const TrainArguments& a, bool resume) {
  Config config = load_config(a.config, a.overrides);
  const auto backend = make_backend(config.device, a.threads ? a.threads : config.threads);
  const Environment environment = read_environment();
  TrainOptions options{.resume = resume, .resume_from = a.resume, .cache_directory = environment.cache, .stop_after = a.steps, .json = a.json, .live = environment.colour};
  for (const std::string& o : a.overrides) options.remat_overridden |= o.starts_with("remat") || o.starts_with("memory");
  if (!a.plan.empty()) {
    config.precision = resolve_precision(config.precision, backend->device());
    config.remat = read_plan(a.plan, config);
  }
  const TrainSummary s = train(config, *backend, options);
  if (a.json)
    print_json(s);
  else
    fmt::print("{} after {} steps: loss {:.4f}{}, {:.0f} tok/s, planned {} (arena {}, all touched), process peak {}\n",
               s.signal ? "stopped and saved" : "done", s.steps, s.final_loss,
               s.evaluated ? fmt::format(", validation perplexity {:.2f}", s.validation_perplexity) : "", s.tokens_per_s, format_bytes(s.planned_bytes),
               format_bytes(s.arena_bytes), format_bytes(s.peak_rss_bytes));
  return s.signal ? 128 + s.signal : 0;
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  auto a = std::make_shared<TrainArguments>();
  CLI::App* c = app.add_subcommand("train", "train a model from a config");
  c->add_option("config", a->config, "JSON config")->required();
  c->add_option("--set", a->overrides, "override a field, as in --set schedule.steps=100")->type_name("KEY=VALUE")->expected(1)->take_all();
  CLI::Option* resume = c->add_option("--resume", a->resume, "continue from the newest checkpoint of the run, or of DIR")->type_name("[=DIR]")->expected(0, 1);
  c->add_option("--plan", a->plan, "use the policies of a plan that 'relume plan --json' made for this config")->type_name("FILE");
  c->add_option("--steps", a->steps, "stop and save after this many steps; the schedule stays as configured")->check(CLI::PositiveNumber);
  c->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON summary; progress goes to stderr");
  c->callback([a, resume, &action] { action = [a, resume] { return run(*a, resume->count() > 0); }; });
}

}  // namespace relume::tools
