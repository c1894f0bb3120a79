#include "relume/config/config.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "field_visitor.h"
#include "relume/config/json_file.h"
#include "relume/base/error.h"
#include "relume/base/units.h"

namespace relume {

namespace config {

namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& origin, const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kConfig, fmt::format("{}: {}: {}", origin, path.empty() ? "config" : path, message));
}

std::string type_of(const Json& j) {
  if (j.is_null()) return "null";
  if (j.is_object()) return "an object";
  if (j.is_array()) return "an array";
  const std::string text = j.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "…" : text;
}

std::string range_text(const Range& r) {
  const std::string open = r.min_excluded ? "(" : "[";
  if (std::isinf(r.max)) return std::isinf(r.min) ? "" : fmt::format(" {} {}", r.min_excluded ? ">" : ">=", r.min);
  return fmt::format(" in {}{}, {}]", open, r.min, r.max);
}

bool inside(double x, const Range& r) { return x <= r.max && (r.min_excluded ? x > r.min : x >= r.min); }

/// One JSON object being read: hands out members, and at the end refuses those nobody asked for.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string origin, std::string path) : json_(json), origin_(std::move(origin)), path_(std::move(path)) {
    if (!json.is_object()) fail(origin_, path_, fmt::format("expected an object, found {}", type_of(json)));
  }

  const Json* member(std::string_view key) {
    known_.emplace_back(key);
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  [[nodiscard]] std::string path(std::string_view key) const { return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key); }
  [[noreturn]] void wrong(std::string_view key, const std::string& expected, const Json& found) const {
    fail(origin_, path(key), fmt::format("expected {}, found {}", expected, type_of(found)));
  }

  void finish() const {
    for (const auto& [key, unused] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end() || key == "$schema") continue;
      const std::string nearest = nearest_name(key, known_);
      std::string list;
      for (const std::string& k : known_) list += (list.empty() ? "" : ", ") + k;
      fail(origin_, path(key), "unknown key" + (nearest.empty() ? "; known keys: " + list : fmt::format("; did you mean '{}'?", nearest)));
    }
  }
  [[nodiscard]] const Json& json() const { return json_; }
  [[nodiscard]] const std::string& origin() const { return origin_; }

 private:
  const Json& json_;
  std::string origin_, path_;
  std::vector<std::string> known_;
};

// --- remat ------------------------------------------------------------------------------------------------------------------

std::string require_policy(ObjectReader& o, std::string_view key, const Json& j) {
  if (!j.is_string()) o.wrong(key, "a policy name", j);
  const auto name = j.get<std::string>();
  if (std::find(kPolicies.begin(), kPolicies.end(), name) == kPolicies.end()) {
    const std::string nearest = nearest_name(name, kPolicies);
    fail(o.origin(), o.path(key), fmt::format("unknown policy '{}'; expected store, selective, exact, greedy or sketch{}", name,
                                              nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
  }
  return name;
}

/// Reads policy, fraction, min_probability and keep of an object.
BlockPolicy read_policy_fields(ObjectReader& o, const std::vector<std::string>& values) {
  BlockPolicy p;
  const Json* policy = o.member("policy");
  if (!policy) fail(o.origin(), o.path("policy"), "missing; expected store, selective, exact, greedy or sketch");
  p.policy = require_policy(o, "policy", *policy);
  const auto only_for = [&](std::string_view key, bool applies, const char* policies) {
    const Json* j = o.member(key);
    if (j && !applies) fail(o.origin(), o.path(key), fmt::format("only {} takes this; the policy here is {}", policies, p.policy));
    return j;
  };
  if (const Json* f = only_for("fraction", p.approximate(), "greedy or sketch")) {
    if (!f->is_number() || !(f->get<double>() > 0 && f->get<double>() <= 1)) o.wrong("fraction", "a number in (0, 1]", *f);
    p.fraction = f->get<double>();
  }
  if (const Json* f = only_for("min_probability", p.policy == "sketch", "sketch")) {
    if (!f->is_number() || !(f->get<double>() >= 0 && f->get<double>() <= 1)) o.wrong("min_probability", "a number in [0, 1]", *f);
    p.min_probability = f->get<double>();
  } else if (p.policy == "sketch" && p.min_probability > p.fraction) {
    p.min_probability = p.fraction / 2;
  }
  if (const Json* keep = only_for("keep", p.policy == "exact", "exact")) {
    if (!keep->is_array()) o.wrong("keep", "an array of value names", *keep);
    for (const Json& name : *keep) {
      std::string list;
      for (const std::string& v : values) list += (list.empty() ? "" : ", ") + v;
      if (!name.is_string() || std::find(values.begin(), values.end(), name.get<std::string>()) == values.end())
        fail(o.origin(), o.path("keep"), fmt::format("expected names among {}, found {}", list, type_of(name)));
      p.keep.push_back(name.get<std::string>());
    }
  }
  return p;
}

BlockPolicy read_block(const Json& j, const std::string& origin, const std::string& path, const std::string& kind) {
  if (j.is_string()) {
    const Json holder = Json::object({{"policy", j}});
    ObjectReader o(holder, origin, path);
    return read_policy_fields(o, block_value_names(kind));
  }
  ObjectReader o(j, origin, path);
  BlockPolicy p = read_policy_fields(o, block_value_names(kind));
  o.finish();
  return p;
}

LayerPolicy read_layer(const Json& j, const std::string& origin, const std::string& path, const LayerPolicy& inherited) {
  LayerPolicy layer = inherited;
  if (j.is_string()) {
    layer.attention = layer.ffn = read_block(j, origin, path, "attention");
    layer.keep_mid = true;
    return layer;
  }
  ObjectReader o(j, origin, path);
  if (j.contains("policy")) {  // one policy for the layer; here "keep" may name the values of both blocks, and mid
    std::vector<std::string> values = block_value_names("attention");
    values.insert(values.end(), block_value_names("ffn").begin(), block_value_names("ffn").end());
    values.emplace_back("mid");
    const BlockPolicy both = read_policy_fields(o, values);
    layer.attention = layer.ffn = both;
    layer.attention.keep.clear();
    layer.ffn.keep.clear();
    for (const std::string& name : both.keep)
      for (auto& [kind, block] : {std::pair{"attention", &layer.attention}, std::pair{"ffn", &layer.ffn}})
        if (const auto& of = block_value_names(kind); std::find(of.begin(), of.end(), name) != of.end()) block->keep.push_back(name);
    layer.keep_mid = !j.contains("keep") || std::find(both.keep.begin(), both.keep.end(), "mid") != both.keep.end();
  } else {
    layer.keep_mid = true;
    bool any = false;
    for (auto& [kind, block] : {std::pair{"attention", &layer.attention}, std::pair{"ffn", &layer.ffn}})
      if (const Json* b = o.member(kind)) {
        *block = read_block(*b, origin, o.path(kind), kind);
        any = true;
      }
    if (!any && !j.empty()) o.finish();
    if (!any) fail(origin, path, "expected a policy name, or an object with \"policy\", \"attention\" or \"ffn\"");
  }
  o.finish();
  return layer;
}

RematConfig::Range read_range(const std::string& key, const std::string& origin, const std::string& path) {
  const std::size_t dash = key.find('-');
  const auto number = [&](const std::string& text) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos)
      fail(origin, path, fmt::format("expected a layer (\"3\") or a range of layers (\"0-7\"), found \"{}\"", key));
    return static_cast<std::int64_t>(std::stoll(text));
  };
  RematConfig::Range r;
  r.first = number(key.substr(0, dash));
  r.last = dash == std::string::npos ? r.first : number(key.substr(dash + 1));
  if (r.last < r.first) fail(origin, path, fmt::format("the range \"{}\" runs backwards", key));
  return r;
}

RematConfig read_remat(const Json& j, const std::string& origin, const std::string& path) {
  RematConfig remat;
  ObjectReader o(j, origin, path);
  if (const Json* d = o.member("default")) remat.defaults = read_layer(*d, origin, o.path("default"), {});
  if (const Json* layers = o.member("layers")) {
    if (!layers->is_object()) o.wrong("layers", "an object of layer ranges", *layers);
    for (const auto& [key, policy] : layers->items()) {
      const std::string at = fmt::format("{}[\"{}\"]", o.path("layers"), key);
      RematConfig::Range range = read_range(key, origin, at);
      range.policy = read_layer(policy, origin, at, remat.defaults);
      for (const RematConfig::Range& other : remat.ranges)
        if (range.first <= other.last && other.first <= range.last)
          fail(origin, at, fmt::format("overlaps the range \"{}-{}\"; each layer may be named once", other.first, other.last));
      remat.ranges.push_back(range);
    }
  }
  std::sort(remat.ranges.begin(), remat.ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  o.finish();
  return remat;
}

Json write_block(const BlockPolicy& p) {
  Json j{{"policy", p.policy}};
  if (p.approximate()) j["fraction"] = p.fraction;
  if (p.policy == "sketch") j["min_probability"] = p.min_probability;
  if (!p.keep.empty()) j["keep"] = p.keep;
  return j.size() == 1 ? Json(p.policy) : j;
}

Json write_layer(const LayerPolicy& l) {
  if (l.keep_mid) return {{"attention", write_block(l.attention)}, {"ffn", write_block(l.ffn)}};
  Json keep = l.attention.keep;
  for (const std::string& name : l.ffn.keep) keep.push_back(name);
  return {{"policy", l.attention.policy}, {"keep", keep}};
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
    std::string list;
    for (const std::string& c : choices) list += (list.empty() ? "" : ", ") + c;
    o_.wrong(key, choices.size() == 1 ? "\"" + list + "\"" : "one of " + list, *j);
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
  void object(std::string_view key, std::string_view, const Describe& describe) override {
    Writer inner;
    describe(inner);
    json[std::string(key)] = inner.json;
  }
  // The shape is always written out, so that a run directory does not depend on another one.
  void path_or_object(std::string_view key, std::string&, std::string_view doc, const Describe& describe) override {
    object(key, doc, describe);
  }
  void remat(std::string_view key, RematConfig& value, std::string_view) override {
    nlohmann::ordered_json layers = nlohmann::ordered_json::object();
    for (const RematConfig::Range& r : value.ranges)
      layers[r.first == r.last ? std::to_string(r.first) : fmt::format("{}-{}", r.first, r.last)] = write_layer(r.policy);
    json[std::string(key)] = {{"default", write_layer(value.defaults)}, {"layers", layers}};
  }
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
  e.colour = !(no_color && *no_color) && !(term && std::string(term) == "dumb");
  return e;
}

}  // namespace relume
