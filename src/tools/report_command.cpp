#include <fmt/format.h>

#include "command.h"
#include "relume/base/error.h"
#include "relume/io/file.h"
#include "relume/train/run_report.h"

namespace relume::tools {

namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string out;
};

int run(const ReportArguments& a) {
  if (a.out.empty() && a.runs.size() > 1) throw Error(ErrorCode::kUsage, "several runs: --out FILE says where the page goes; as --out comparison.html");
  const std::string out = a.out.empty() ? a.runs.front() + "/report.html" : a.out;
  write_file_atomically(out, run_report(a.runs));
  fmt::print("report -> {}\n", out);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto a = std::make_shared<ReportArguments>();
  CLI::App* c = app.add_subcommand("report", "one HTML page about a run, or several runs side by side");
  c->add_option("runs", a->runs, "run directories")->required();
  c->add_option("--out", a->out, "file to write; otherwise RUN/report.html")->type_name("FILE");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
