// One self-contained HTML page about one or several runs.
#pragma once
#include <string>
#include <vector>

namespace relume {

/// Reads metrics.jsonl, config.json, plan.json, plan.svg and audit.json (where there is one) of each run directory. Needs no
/// network and no script to be read. Throws kFile if a directory holds no run.
[[nodiscard]] std::string run_report(const std::vector<std::string>& directories);

}  // namespace relume
