#include <fmt/format.h>

#include "command.h"

namespace relume::tools {

void add_config(CLI::App& app, Action& action) {
  struct ConfigArguments {
    std::string config;
    std::vector<std::string> overrides;
    bool markdown = false;
  };
  auto a = std::make_shared<ConfigArguments>();
  CLI::App* c = app.add_subcommand("config", "look at configs")->require_subcommand(1);
  for (const char* name : {"show", "check"}) {
    const bool show = std::string(name) == "show";
    CLI::App* sub = c->add_subcommand(name, show ? "print every field with its value" : "say whether a config is valid, and if not why");
    sub->add_option("config", a->config, "JSON config")->required();
    sub->add_option("--set", a->overrides, "override a field")->type_name("KEY=VALUE")->expected(1)->take_all();
    sub->callback([a, show, &action] {
      action = [a, show] {
        const Config config = load_config(a->config, a->overrides);
        fmt::print("{}", show ? to_json(config) : a->config + ": valid\n");
        return 0;
      };
    });
  }
  CLI::App* schema = c->add_subcommand("schema", "print the JSON Schema of configs, for editors");
  schema->add_flag("--markdown", a->markdown, "print the table of docs/config.md instead");
  schema->callback([a, &action] {
    action = [a] {
      fmt::print("{}", a->markdown ? config_markdown() : config_schema());
      return 0;
    };
  });
}

}  // namespace relume::tools
