#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/base/version.h"

namespace relume::tools {

std::unique_ptr<Backend> make_backend(const std::string& device, std::int64_t threads) {
  if (device == "cuda" || (device == "auto" && cuda_devices() > 0)) return make_cuda_backend();
  return make_cpu_backend({.threads = static_cast<int>(threads), .isa = read_environment().isa});
}

std::string read_input(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kFile, fmt::format("{}: cannot be read", path));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::int32_t> parse_ids(const std::string& list) {
  std::vector<std::int32_t> ids;
  std::stringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    std::size_t used = 0;
    try {
      ids.push_back(std::stoi(word, &used));
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || word.find_first_not_of(' ', used) != std::string::npos)
      throw Error(ErrorCode::kUsage, fmt::format("--ids: expected whole numbers separated by commas, found '{}'", word));
  }
  return ids;
}

namespace {

void set_up_logging(bool colour) {
  auto sink = colour && isatty(STDERR_FILENO) ? spdlog::sink_ptr(std::make_shared<spdlog::sinks::stderr_color_sink_mt>())
                                              : spdlog::sink_ptr(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("relume", std::move(sink)));
  spdlog::set_pattern("%^%l%$: %v");
}

/// The names a mistyped word may have been meant to be.
std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : app.get_subcommands({})) words.push_back(sub->get_name());
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  return words;
}

/// Usage errors in the form of all others, with the nearest word that exists.
int report_usage(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  std::string name = at->get_name();  // "relume tokenize convert"
  for (const CLI::App* above = at; above != &app;) {
    above = above->get_parent();
    name = above->get_name() + " " + name;
  }
  std::string message = e.what(), hint;
  if (const auto extras = at->remaining(); !extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    message = fmt::format("'{}' is not known to '{}'", word, name);
    hint = nearest_name(word, known_words(*at));
  }
  fmt::print(stderr, "error: {}{}; see '{} --help'\n", message, hint.empty() ? "" : fmt::format("; did you mean '{}'?", hint), name);
  return 2;
}

/// Help shows defaults, but not values that only stand for "not given": a 0 where only positive numbers are taken, and empty lists.
void hide_placeholders(CLI::App& app) {
  for (CLI::Option* o : app.get_options())
    if (o->get_default_str() == "[]" || (o->get_default_str() == "0" && o->get_type_name().find("POSITIVE") != std::string::npos)) o->default_str("");
  for (CLI::App* sub : app.get_subcommands({})) hide_placeholders(*sub);
}

int run(int argc, char** argv) {
  CLI::App app{"relume trains Llama models with a memory plan and a rematerialization policy for every layer.", "relume"};
  app.set_version_flag("--version", fmt::format("relume {} ({})\nbackends: cpu{}", version(), commit(), cuda_build().empty() ? "" : ", " + cuda_build()));
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.option_defaults()->always_capture_default();  // subcommands inherit it: help shows what is done where nothing is said
  Action action;
  add_train(app, action);
  add_plan(app, action);
  add_eval(app, action);
  add_tokenize(app, action);
  add_generate(app, action);
  add_inspect(app, action);
  add_convert(app, action);
  add_config(app, action);
  add_audit(app, action);
  add_report(app, action);
  add_bench(app, action);
  hide_placeholders(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report_usage(app, e);
  }
  return action();
}

}  // namespace
}  // namespace relume::tools

int main(int argc, char** argv) {
  relume::tools::set_up_logging(relume::read_environment().colour);
  try {
    return relume::tools::run(argc, argv);
  } catch (const relume::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return relume::exit_code(e.code());
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: unexpected: {}\n", e.what());
    return 1;
  }
}
