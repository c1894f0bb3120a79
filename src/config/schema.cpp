// The JSON Schema that editors complete and check configs with, and the table of docs/config.md.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "field_visitor.h"
#include "relume/base/units.h"

namespace relume {

namespace config {

namespace {

using Json = nlohmann::ordered_json;

Json policy_schema(bool layer) {
  const Json names = {{"enum", kPolicies}};
  Json object{{"type", "object"},
              {"properties",
               {{"policy", names},
                {"fraction", {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}, {"description", "greedy, sketch: share of components recomputed"}}},
                {"min_probability", {{"type", "number"}, {"minimum", 0}, {"maximum", 1}, {"description", "sketch: no component is drawn with less"}}},
                {"keep", {{"type", "array"}, {"items", {{"type", "string"}}}, {"description", "exact: values saved besides the block input"}}}}},
              {"required", {"policy"}},
              {"additionalProperties", false}};
  Json any{{"anyOf", {names, object}}};
  if (layer) {
    const Json block = policy_schema(false);
    any["anyOf"].push_back({{"type", "object"}, {"properties", {{"attention", block}, {"ffn", block}}}, {"minProperties", 1}, {"additionalProperties", false}});
  }
  return any;
}

class SchemaWriter final : public FieldVisitor {
 public:
  Json properties = Json::object();

  void integer(std::string_view key, std::int64_t& value, Range range, std::string_view doc) override {
    add(key, ranged({{"type", "integer"}, {"default", value}}, range), doc);
  }
  void number(std::string_view key, double& value, Range range, std::string_view doc) override {
    add(key, ranged({{"type", "number"}, {"default", value}}, range), doc);
  }
  void numbers(std::string_view key, std::vector<double>& value, std::size_t count, Range range, std::string_view doc) override {
    add(key, {{"type", "array"}, {"items", ranged({{"type", "number"}}, range)}, {"minItems", count}, {"maxItems", count}, {"default", value}}, doc);
  }
  void boolean(std::string_view key, bool& value, std::string_view doc) override { add(key, {{"type", "boolean"}, {"default", value}}, doc); }
  void text(std::string_view key, std::string& value, const std::vector<std::string>& choices, std::string_view doc) override {
    Json j{{"type", "string"}, {"default", value}};
    if (!choices.empty()) j["enum"] = choices;
    add(key, j, doc);
  }
  void texts(std::string_view key, std::vector<std::string>& value, const std::vector<std::string>& choices, std::string_view doc) override {
    add(key, {{"type", "array"}, {"items", {{"enum", choices}}}, {"uniqueItems", true}, {"default", value}}, doc);
  }
  void bytes(std::string_view key, std::int64_t& value, std::string_view doc) override {
    add(key, {{"anyOf", {{{"type", "string"}, {"pattern", "^[0-9.]+ ?(B|KiB|MiB|GiB|TiB)?$"}}, {{"type", "integer"}, {"minimum", 0}}}}, {"default", exact_bytes(value)}}, doc);
  }
  void object(std::string_view key, std::string_view doc, const Describe& describe) override { add(key, inner(describe), doc); }
  void path_or_object(std::string_view key, std::string&, std::string_view doc, const Describe& describe) override {
    add(key, {{"anyOf", {{{"type", "string"}}, inner(describe)}}}, doc);
  }
  void remat(std::string_view key, RematConfig&, std::string_view doc) override {
    add(key,
        {{"type", "object"},
         {"properties",
          {{"default", policy_schema(true)},
           {"layers", {{"type", "object"}, {"patternProperties", {{"^[0-9]+(-[0-9]+)?$", policy_schema(true)}}}, {"additionalProperties", false}}}}},
         {"additionalProperties", false}},
        doc);
  }

 private:
  static Json inner(const Describe& describe) {
    SchemaWriter w;
    describe(w);
    return {{"type", "object"}, {"properties", w.properties}, {"additionalProperties", false}};
  }
  static Json ranged(Json j, const Range& r) {
    if (!std::isinf(r.min)) j[r.min_excluded ? "exclusiveMinimum" : "minimum"] = r.min;
    if (!std::isinf(r.max)) j["maximum"] = r.max;
    return j;
  }
  void add(std::string_view key, Json j, std::string_view doc) {
    j["description"] = doc;
    properties[std::string(key)] = std::move(j);
  }
};

class MarkdownWriter final : public FieldVisitor {
 public:
  explicit MarkdownWriter(std::string& out, std::string prefix = "") : out_(out), prefix_(std::move(prefix)) {}

  void integer(std::string_view key, std::int64_t& value, Range, std::string_view doc) override { row(key, fmt::format("{}", value), doc); }
  void number(std::string_view key, double& value, Range, std::string_view doc) override { row(key, fmt::format("{}", value), doc); }
  void numbers(std::string_view key, std::vector<double>& value, std::size_t, Range, std::string_view doc) override {
    std::string list;
    for (double x : value) list += fmt::format("{}{}", list.empty() ? "" : ", ", x);
    row(key, "[" + list + "]", doc);
  }
  void boolean(std::string_view key, bool& value, std::string_view doc) override { row(key, value ? "true" : "false", doc); }
  void text(std::string_view key, std::string& value, const std::vector<std::string>& choices, std::string_view doc) override {
    std::string list;
    for (const std::string& c : choices) list += (list.empty() ? " (" : ", ") + c;
    row(key, "\"" + value + "\"", std::string(doc) + (list.empty() ? "" : list + ")"));
  }
  void texts(std::string_view key, std::vector<std::string>&, const std::vector<std::string>& choices, std::string_view doc) override {
    std::string list;
    for (const std::string& c : choices) list += (list.empty() ? " (" : ", ") + c;
    row(key, "[]", std::string(doc) + list + ")");
  }
  void bytes(std::string_view key, std::int64_t& value, std::string_view doc) override { row(key, fmt::format("{}", value), doc); }
  void object(std::string_view key, std::string_view doc, const Describe& describe) override {
    row(key, "", doc);
    MarkdownWriter inner(out_, prefix_ + std::string(key) + ".");
    describe(inner);
  }
  void path_or_object(std::string_view key, std::string&, std::string_view doc, const Describe& describe) override { object(key, doc, describe); }
  void remat(std::string_view key, RematConfig&, std::string_view doc) override { row(key, "store everywhere", doc); }

 private:
  void row(std::string_view key, const std::string& value, std::string_view doc) {
    out_ += fmt::format("| `{}{}` | {} | {} |\n", prefix_, key, value.empty() ? "" : "`" + value + "`", doc);
  }
  std::string& out_;
  std::string prefix_;
};

}  // namespace
}  // namespace config

std::string config_schema() {
  Config c;
  config::SchemaWriter w;
  config::describe(w, c);
  w.properties["$schema"] = {{"type", "string"}};
  const nlohmann::ordered_json schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                                      {"title", "relume configuration"},
                                      {"type", "object"},
                                      {"properties", w.properties},
                                      {"required", {"model"}},
                                      {"additionalProperties", false}};
  return schema.dump(2) + "\n";
}

std::string config_markdown() {
  Config c;
  std::string table = "| key | default | meaning |\n|---|---|---|\n";
  config::MarkdownWriter w(table);
  config::describe(w, c);
  return table;
}

}  // namespace relume
