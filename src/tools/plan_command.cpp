#include <fmt/format.h>

#include <chrono>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/file.h"
#include "relume/train/device_facts.h"
#include "relume/train/plan_report.h"

namespace relume::tools {

namespace {

struct PlanArguments {
  std::string config, device, budget, svg, pareto, write_config;
  std::vector<std::string> overrides;
  std::int64_t threads = 0, explain = -1;
  bool json = false, nodes = false;
};

/// --budget plans for another budget: what the config leaves open, or where it leaves nothing open all that is not pinned to a
/// layer, is chosen anew.
Config load(const PlanArguments& a, bool& default_replaced) {
  std::vector<std::string> overrides = a.overrides;
  default_replaced = false;
  if (!a.budget.empty()) {
    if (const auto bytes = parse_bytes(a.budget); !bytes || *bytes == 0)
      throw Error(ErrorCode::kUsage, fmt::format("--budget {}: expected an amount of memory, as 16GiB or '900 MiB'", a.budget));
    overrides.push_back(fmt::format("memory.budget=\"{}\"", a.budget));
  }
  Config c = load_config(a.config, overrides);
  if (a.budget.empty() || c.remat.automatic()) return c;
  default_replaced = true;
  overrides.emplace_back("remat.default=\"auto\"");
  return load_config(a.config, overrides);
}

/// Writes FILE.csv and FILE.svg; FILE may end with either.
void write_pareto(std::string file, const RematPlanner& planner, const PlanReport& report) {
  for (const char* ending : {".csv", ".svg"})
    if (file.ends_with(ending)) file.resize(file.size() - 4);
  constexpr std::size_t kPoints = 41;
  const auto points = pareto(planner, kPoints);
  write_file_atomically(file + ".csv", pareto_csv(points));
  write_file_atomically(file + ".svg", pareto_svg(points, report));
}

DeviceRates rates_of(const PlanArguments& a, const Config& config, Backend& backend) {
  for (const DescribedDevice& d : described_devices())
    if (d.name == a.device) return d.rates;
  return device_rates(config, backend, read_environment().cache);
}

int run(const PlanArguments& a) {
  bool default_replaced = false;
  Config config = load(a, default_replaced);
  const auto backend = a.device.empty() ? make_backend(config.device, a.threads ? a.threads : config.threads) : make_described_backend(a.device);
  config.precision = resolve_precision(config.precision, backend->device());
  const DeviceRates rates = rates_of(a, config, *backend);
  const KernelTable& kernels = backend->kernels();
  const auto start = std::chrono::steady_clock::now();
  const Program program = make_program(config, kernels, rates);
  PlanReport report = report_plan(config, program, kernels, backend->device(), rates);
  report.plan_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::string notes = a.nodes ? plan_nodes(config, program.training, rates) : "";
  if (default_replaced) notes += " the policies of remat.default were chosen for this budget, instead of those in the config\n";
  if (!a.svg.empty()) {
    write_file_atomically(a.svg, plan_svg(report));
    notes += fmt::format(" timeline -> {}\n", a.svg);
  }
  if (!a.pareto.empty() || a.explain >= 0) {
    Config open = config;
    if (!config.remat.automatic()) open.remat.defaults = {{.policy = "auto"}, {.policy = "auto"}};
    const RematPlanner planner(a.pareto.empty() ? config : open, kernels, rates);
    if (!a.pareto.empty()) {
      write_pareto(a.pareto, planner, report);
      notes += fmt::format(" budget against time -> {}\n", a.pareto);
    }
    if (a.explain >= 0) notes += explain_layer(a.pareto.empty() ? config : open, planner, a.explain);
  }
  if (!a.write_config.empty()) {
    Config frozen = config;
    frozen.remat = program.remat;
    write_file_atomically(a.write_config, to_json(frozen));
    notes += fmt::format(" config with these policies -> {}\n", a.write_config);
  }
  if (a.json)
    fmt::print("{}", plan_json(report));
  else
    fmt::print("{}\n{}", plan_table(report), notes);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto a = std::make_shared<PlanArguments>();
  CLI::App* c = app.add_subcommand("plan", "memory, time and policies of a config, before anything is allocated");
  c->add_option("config", a->config, "JSON config")->required();
  c->add_option("--set", a->overrides, "override a field")->type_name("KEY=VALUE")->expected(1)->take_all();
  c->add_option("--device", a->device, "plan for a GPU that need not be here: h200, h100 or a100; its times are estimates from data sheets")->type_name("NAME");
  c->add_option("--budget", a->budget, "choose policies that stay within this much memory, as 16GiB")->type_name("BYTES");
  c->add_option("--svg", a->svg, "write the timeline and the arena as a picture")->type_name("FILE");
  c->add_option("--pareto", a->pareto, "write budget against predicted time, as FILE.csv and FILE.svg")->type_name("FILE");
  c->add_option("--explain", a->explain, "what this layer could keep instead, and what that would cost")->type_name("LAYER");
  c->add_flag("--nodes", a->nodes, "predicted time, flops and bytes by kind of node");
  c->add_option("--write-config", a->write_config, "write the config with the chosen policies of every layer")->type_name("FILE");
  c->add_option("--threads", a->threads, "CPU threads to plan for")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
