#include "relume/config/config.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "field_visitor.h"
#include "object_reader.h"
#include "relume/config/json_file.h"
#include "relume/base/error.h"
#include "relume/base/units.h"

namespace relume {

namespace config {

namespace {

std::string range_text(const Range& r) {
  const std::string open = r.min_excluded ? "(" : "[";
  if (std::isinf(r.max)) return std::isinf(r.min) ? "" : fmt::format(" {} {}", r.min_excluded ? ">" : ">=", r.min);
  return fmt::format(" in {}{}, {}]", open, r.min, r.max);
}

bool inside(double x, const Range& r) { return x <= r.max && (r.min_excluded ? x > r.min : x >= r.min); }

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// --- the visitors -----------------------------------------------------------------------------------------------------------

class Reader final : public FieldVisitor {
 public:
  Reader(const Json& json, const std::string& origin, const std::string& path) : o_(json, origin, path) {}

  void integer(std::string_view key, std::int64_t& value, Range range, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    const bool whole = j->is_number_integer() || (j->is_number_float() && std::trunc(j->get<double>()) == j->get<double>() &&
                                                  std::abs(j->get<double>()) < 9e15);
    const bool too_large = j->is_number_unsigned() && j->get<std::uint64_t>() > std::uint64_t{1} << 62;
    if (!whole || too_large || !inside(j->get<double>(), range)) o_.wrong(key, "a whole number" + range_text(range), *j);
    value = j->get<std::int64_t>();
  }
  void number(std::string_view key, double& value, Range range, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    if (!j->is_number() || !inside(j->get<double>(), range)) o_.wrong(key, "a number" + range_text(range), *j);
    value = j->get<double>();
  }
  void numbers(std::string_view key, std::vector<double>& value, std::size_t count, Range range, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    const std::string expected = fmt::format("an array of {} numbers{}", count, range_text(range));
    if (!j->is_array() || j->size() != count) o_.wrong(key, expected, *j);
    value.clear();
    for (const Json& x : *j) {
      if (!x.is_number() || !inside(x.get<double>(), range)) o_.wrong(key, expected, x);
      value.push_back(x.get<double>());
    }
  }
  void boolean(std::string_view key, bool& value, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    if (!j->is_boolean()) o_.wrong(key, "true or false", *j);
    value = j->get<bool>();
  }
  void text(std::string_view key, std::string& value, const std::vector<std::string>& choices, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    if (!j->is_string()) o_.wrong(key, "a string", *j);
    value = j->get<std::string>();
    if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) return;
    o_.wrong(key, choices.size() == 1 ? "\"" + choices[0] + "\"" : "one of " + listed(choices), *j);
  }
  void texts(std::string_view key, std::vector<std::string>& value, const std::vector<std::string>& choices, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    const std::string expected = "an array with names among " + listed(choices);
    if (!j->is_array()) o_.wrong(key, expected, *j);
    value.clear();
    for (const Json& x : *j) {
      if (!x.is_string() || std::find(choices.begin(), choices.end(), x.get<std::string>()) == choices.end()) o_.wrong(key, expected, x);
      value.push_back(x.get<std::string>());
    }
  }
  void bytes(std::string_view key, std::int64_t& value, std::string_view) override {
    const Json* j = o_.member(key);
    if (!j) return;
    std::optional<std::int64_t> parsed;
    if (j->is_string()) parsed = parse_bytes(j->get<std::string>());
    if (j->is_number_unsigned() && j->get<std::uint64_t>() < std::uint64_t{1} << 62) parsed = j->get<std::int64_t>();
    if (!parsed) o_.wrong(key, "an amount of memory, as \"16GiB\" or \"900 MiB\"", *j);
    value = *parsed;
  }
  void object(std::string_view key, std::string_view, const Describe& describe) override {
    const Json* j = o_.member(key);
    if (!j) return;
    Reader inner(*j, o_.origin(), o_.path(key));
    describe(inner);
    inner.finish();
  }
  void path_or_object(std::string_view key, std::string& path, std::string_view doc, const Describe& describe) override {
    const Json* j = o_.member(key);
    if (!j) fail(o_.origin(), o_.path(key), "missing; expected an object (" + std::string(doc) + ")");
    if (j->is_string())
      path = j->get<std::string>();
    else
      object(key, doc, describe);
  }
  void remat(std::string_view key, RematConfig& value, std::string_view) override {
    if (const Json* j = o_.member(key)) value = read_remat(*j, o_.origin(), o_.path(key));
  }
  void finish() const { o_.finish(); }

 private:
  ObjectReader o_;
};

class Writer final : public FieldVisitor {
 public:
  nlohmann::ordered_json json = nlohmann::ordered_json::object();

  void integer(std::string_view key, std::int64_t& value, Range, std::string_view) override { json[std::string(key)] = value; }
  void number(std::string_view key, double& value, Range, std::string_view) override { json[std::string(key)] = value; }
  void numbers(std::string_view key, std::vector<double>& value, std::size_t, Range, std::string_view) override {
    json[std::string(key)] = value;
  }
  void boolean(std::string_view key, bool& value, std::string_view) override { json[std::string(key)] = value; }
  void text(std::string_view key, std::string& value, const std::vector<std::string>&, std::string_view) override {
    json[std::string(key)] = value;
  }
  void texts(std::string_view key, std::vector<std::string>& value, const std::vector<std::string>&, std::string_view) override {
    json[std::string(key)] = value;
  }
  void bytes(std::string_view key, std::int64_t& value, std::string_view) override { json[std::string(key)] = exact_bytes(value); }
  void object(std::string_view key, std::string_view, const Describe& describe) override {
    Writer inner;
    describe(inner);
    json[std::string(key)] = inner.json;
  }
  // The shape is always written out, so that a run directory does not depend on another one.
  void path_or_object(std::string_view key, std::string&, std::string_view doc, const Describe& describe) override {
    object(key, doc, describe);
  }
  void remat(std::string_view key, RematConfig& value, std::string_view) override { json[std::string(key)] = write_remat(value); }
};

/// Sets a.b.c in a JSON document; the value is JSON if it parses as such, else a string.
void apply_override(Json& document, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(ErrorCode::kUsage, fmt::format("--set {}: expected key=value, as in --set schedule.steps=100", text));
  Json* at = &document;
  std::string path = text.substr(0, equals);
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    if (!at->is_object() && !at->is_null()) throw Error(ErrorCode::kUsage, fmt::format("--set {}: '{}' is no object", text, path.substr(0, begin)));
    at = &(*at)[path.substr(begin, end - begin)];
    begin = end + 1;
  }
  const std::string value = text.substr(equals + 1);
  *at = Json::parse(value, nullptr, false);
  if (at->is_discarded()) *at = value;
}

}  // namespace
}  // namespace config

Config parse_config(const std::string& text, const std::string& origin, const std::vector<std::string>& overrides) {
  nlohmann::json document = config::parse_json(text, origin);
  for (const std::string& o : overrides) config::apply_override(document, o);
  Config c;
  config::Reader reader(document, overrides.empty() ? origin : origin + " with --set", "");
  config::describe(reader, c);
  reader.finish();
  if (!c.model_path.empty()) c.model = parse_model_config(config::read_text(c.model_path + "/config.json"), c.model_path + "/config.json");
  config::validate(c, origin);
  return c;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_config(config::read_text(path), path, overrides);
}

std::string to_json(const Config& config) {
  Config copy = config;
  config::Writer writer;
  config::describe(writer, copy);
  return writer.json.dump(2) + "\n";
}

bool RematConfig::automatic() const {
  bool any = defaults.automatic();
  for (const Range& r : ranges) any |= r.policy.automatic();
  return any;
}

const LayerPolicy& RematConfig::layer(std::int64_t l) const {
  for (const Range& r : ranges)
    if (r.first <= l && l <= r.last) return r.policy;
  return defaults;
}

const std::vector<std::string>& block_value_names(std::string_view kind) {
  static const std::vector<std::string> attention{"attn_norm", "qkv", "attn_out"}, ffn{"ffn_norm", "gate_up", "swiglu"};
  return kind == "attention" ? attention : ffn;
}

Environment read_environment() {
  Environment e;
  if (const char* isa = std::getenv("RELUME_ISA")) e.isa = isa;
  const char *no_color = std::getenv("NO_COLOR"), *term = std::getenv("TERM");
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache && *cache)
    e.cache = std::string(cache) + "/relume";
  else if (home && *home)
    e.cache = std::string(home) + "/.cache/relume";
  e.colour = !(no_color && *no_color) && !(term && std::string(term) == "dumb");
  return e;
}

}  // namespace relume
