#include <fmt/format.h>

#include <chrono>

#include "command.h"
#include "relume/io/file.h"
#include "relume/train/plan_report.h"

namespace relume::tools {

namespace {

struct PlanArguments {
  std::string config, svg;
  std::vector<std::string> overrides;
  std::int64_t threads = 0;
  bool json = false;
};

int run(const PlanArguments& a) {
  Config config = load_config(a.config, a.overrides);
  const auto backend = make_null_backend(make_backend(config.device, a.threads ? a.threads : config.threads));
  config.precision = resolve_precision(config.precision, backend->device());
  const auto start = std::chrono::steady_clock::now();
  const Program program = make_program(config, backend->kernels());
  PlanReport report = report_plan(config, program, backend->device().description);
  report.plan_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!a.svg.empty()) write_file_atomically(a.svg, plan_svg(report));
  if (a.json)
    fmt::print("{}", plan_json(report));
  else
    fmt::print("{}\n{}", plan_table(report), a.svg.empty() ? "" : fmt::format(" timeline -> {}\n", a.svg));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto a = std::make_shared<PlanArguments>();
  CLI::App* c = app.add_subcommand("plan", "memory and flops of a config, before anything is allocated");
  c->add_option("config", a->config, "JSON config")->required();
  c->add_option("--set", a->overrides, "override a field")->type_name("KEY=VALUE")->expected(1)->take_all();
  c->add_option("--svg", a->svg, "write the timeline as a picture")->type_name("FILE");
  c->add_option("--threads", a->threads, "CPU threads to plan for")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
