// The command line: one file a subcommand. Each adds its options and says what to run.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "relume/backend/backend.h"
#include "relume/config/config.h"

namespace relume::tools {

/// What main runs after parsing: the chosen subcommand's action, which returns the exit code.
using Action = std::function<int()>;

void add_train(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_config(CLI::App& app, Action& action);
void add_audit(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);

/// The backend a config's or a command's "device" means.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const std::string& device, std::int64_t threads);

/// A whole file, or standard input for "-", byte for byte.
[[nodiscard]] std::string read_input(const std::string& path);

/// "1,2,3". Throws kUsage.
[[nodiscard]] std::vector<std::int32_t> parse_ids(const std::string& list);

}  // namespace relume::tools
