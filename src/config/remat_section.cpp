// The "remat" section: a policy a layer and block, as short as people write it.
#include <fmt/format.h>

#include <algorithm>

#include "field_visitor.h"
#include "object_reader.h"
#include "relume/base/units.h"

namespace relume::config {

namespace {

std::string require_policy(ObjectReader& o, std::string_view key, const Json& j) {
  if (!j.is_string()) o.wrong(key, "a policy name", j);
  const auto name = j.get<std::string>();
  if (std::find(kPolicies.begin(), kPolicies.end(), name) == kPolicies.end()) {
    const std::string nearest = nearest_name(name, kPolicies);
    fail(o.origin(), o.path(key), fmt::format("unknown policy '{}'; expected store, selective, exact, greedy, sketch or auto{}", name,
                                              nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
  }
  return name;
}

/// Reads policy, fraction, min_probability and keep of an object.
BlockPolicy read_policy_fields(ObjectReader& o, const std::vector<std::string>& values) {
  BlockPolicy p;
  const Json* policy = o.member("policy");
  if (!policy) fail(o.origin(), o.path("policy"), "missing; expected store, selective, exact, greedy, sketch or auto");
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

nlohmann::ordered_json write_block(const BlockPolicy& p) {
  nlohmann::ordered_json j{{"policy", p.policy}};
  if (p.approximate()) j["fraction"] = p.fraction;
  if (p.policy == "sketch") j["min_probability"] = p.min_probability;
  if (!p.keep.empty()) j["keep"] = p.keep;
  return j.size() == 1 ? nlohmann::ordered_json(p.policy) : j;
}

nlohmann::ordered_json write_layer(const LayerPolicy& l) {
  if (l.keep_mid) return {{"attention", write_block(l.attention)}, {"ffn", write_block(l.ffn)}};
  nlohmann::ordered_json keep = l.attention.keep;
  for (const std::string& name : l.ffn.keep) keep.push_back(name);
  return {{"policy", l.attention.policy}, {"keep", keep}};
}

}  // namespace

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

nlohmann::ordered_json write_remat(const RematConfig& remat) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const RematConfig::Range& r : remat.ranges)
    layers[r.first == r.last ? std::to_string(r.first) : fmt::format("{}-{}", r.first, r.last)] = write_layer(r.policy);
  return {{"default", write_layer(remat.defaults)}, {"layers", layers}};
}

}  // namespace relume::config
