#include <fmt/format.h>

#include "command.h"
#include "relume/io/file.h"
#include "relume/train/audit.h"
#include "relume/train/metrics.h"

namespace relume::tools {

namespace {

struct AuditArguments {
  std::string config, svg, out;
  std::vector<std::string> overrides;
  AuditOptions options;
  std::int64_t threads = 0;
  bool json = false, all = false;
};

int run(const AuditArguments& a) {
  const Config config = load_config(a.config, a.overrides);
  const auto backend = make_backend(config.device, a.threads ? a.threads : config.threads);
  ProgressLine progress(stderr, 5, read_environment().colour);
  const AuditResult result = audit(config, *backend, a.options, [&](double share) { progress.show(fmt::format("audit: {:.0f} % of the blocks", 100 * share), share); });
  progress.finish();
  if (!a.svg.empty()) write_file_atomically(a.svg, audit_svg(result));
  if (!a.out.empty()) write_file_atomically(a.out, audit_json(result));
  if (a.json)
    fmt::print("{}", audit_json(result));
  else
    fmt::print("{}\n{}", audit_table(result, a.all), a.svg.empty() ? "" : fmt::format(" heat map -> {}\n", a.svg));
  return 0;
}

}  // namespace

void add_audit(CLI::App& app, Action& action) {
  auto a = std::make_shared<AuditArguments>();
  CLI::App* c = app.add_subcommand("audit", "what approximate policies do to the gradient of each block");
  c->add_option("config", a->config, "JSON config")->required();
  c->add_option("--set", a->overrides, "override a field")->type_name("KEY=VALUE")->expected(1)->take_all();
  c->add_option("--from", a->options.from, "checkpoint or Hugging Face directory with the weights; otherwise the initial ones")->type_name("DIR");
  c->add_option("--policies", a->options.policies, "greedy,sketch")->delimiter(',')->check(CLI::IsMember({"greedy", "sketch"}));
  c->add_option("--fractions", a->options.fractions, "shares of components recomputed, as 0.6667,0.5")->delimiter(',')->check(CLI::Range(1e-6, 1.0));
  c->add_option("--min-probability", a->options.min_probability, "of a sketch")->check(CLI::Range(0.0, 1.0));
  c->add_option("--batches", a->options.batches, "micro-batches of training data")->check(CLI::Range(2, 1000));
  c->add_option("--draws", a->options.draws, "of a sketch for each batch")->check(CLI::Range(2, 100000));
  c->add_option("--sequences", a->options.sequences, "windows of a batch; otherwise the config's micro_batch_size")->check(CLI::PositiveNumber);
  c->add_option("--svg", a->svg, "write a heat map over layers")->type_name("FILE");
  c->add_option("--out", a->out, "write the JSON too; in a run directory as audit.json the report shows it")->type_name("FILE");
  c->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  c->add_flag("--all", a->all, "print every layer");
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
