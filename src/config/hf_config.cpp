// config.json of a Hugging Face Llama. Keys that change the arithmetic and are not implemented are refused by name.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "field_visitor.h"
#include "relume/config/json_file.h"
#include "relume/base/error.h"

namespace relume {

namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& origin, const std::string& key, const std::string& message) {
  throw Error(ErrorCode::kFile, fmt::format("{}: {}: {}", origin, key, message));
}

class HfConfig {
 public:
  HfConfig(const Json& json, const std::string& origin) : json_(json), origin_(origin) {
    if (!json.is_object()) fail(origin, "config", "expected an object");
  }

  /// Absent and null mean the default.
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t fallback) const {
    const Json* j = find(key);
    if (!j) return fallback;
    if (!j->is_number_integer() || j->get<double>() < 1 || j->get<double>() > 2147483647.0) fail(origin_, key, "expected a positive whole number, found " + j->dump());
    return j->get<std::int64_t>();
  }
  [[nodiscard]] double number(const char* key, double fallback) const {
    const Json* j = find(key);
    if (!j) return fallback;
    if (!j->is_number() || !(j->get<double>() > 0)) fail(origin_, key, "expected a positive number, found " + j->dump());
    return j->get<double>();
  }
  [[nodiscard]] bool boolean(const char* key, bool fallback) const {
    const Json* j = find(key);
    if (!j) return fallback;
    if (!j->is_boolean()) fail(origin_, key, "expected true or false, found " + j->dump());
    return j->get<bool>();
  }
  void refuse_unless(const char* key, const Json& neutral) const {
    const Json* j = find(key);
    if (j && *j != neutral) fail(origin_, key, fmt::format("{} is not implemented; only {} is", j->dump(), neutral.dump()));
  }
  [[nodiscard]] const Json* find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

 private:
  const Json& json_;
  const std::string& origin_;
};

struct Rope {
  double theta = 10000.0;
  RopeScaling scaling;
  bool operator==(const Rope&) const = default;
};

/// One object of rotary parameters, as either spelling has it.
Rope read_rope(const HfConfig& c, const std::string& key, const Json& object, const std::string& origin) {
  if (!object.is_object()) fail(origin, key, "expected an object, found " + object.dump());
  const HfConfig o(object, origin);
  const Json* type = o.find("rope_type");
  if (!type) type = o.find("type");
  Rope rope{.theta = o.number("rope_theta", c.number("rope_theta", 10000.0))};
  if (!type || *type == "default") return rope;
  if (*type != "llama3") fail(origin, key + ".rope_type", type->dump() + " is not implemented; only \"default\" and \"llama3\" are");
  for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor"})
    if (!o.find(needed)) fail(origin, key + "." + needed, "missing; llama3 scaling needs it");
  const std::int64_t original = o.integer("original_max_position_embeddings", c.find("original_max_position_embeddings") ? c.integer("original_max_position_embeddings", 0) : 0);
  if (original == 0) fail(origin, key + ".original_max_position_embeddings", "missing; llama3 scaling needs it, and programs assume different values without it");
  rope.scaling = {"llama3", o.number("factor", 1), o.number("low_freq_factor", 1), o.number("high_freq_factor", 4), original};
  return rope;
}

/// From either spelling: rope_theta with rope_scaling (transformers 4), or rope_parameters (5). Where both are there they must agree:
/// programs differ in which one they believe.
Rope read_rope(const HfConfig& c, const std::string& origin) {
  const Json *old = c.find("rope_scaling"), *parameters = c.find("rope_parameters");
  const Rope plain{.theta = c.number("rope_theta", 10000.0)};
  if (!parameters) return old ? read_rope(c, "rope_scaling", *old, origin) : plain;
  const Rope rope = read_rope(c, "rope_parameters", *parameters, origin);
  if (c.find("rope_theta") && plain.theta != rope.theta)
    fail(origin, "rope_theta", fmt::format("{} here and {} in rope_parameters; programs disagree which one counts", plain.theta, rope.theta));
  if (old && read_rope(c, "rope_scaling", *old, origin) != rope) fail(origin, "rope_scaling", "differs from rope_parameters; programs disagree which one counts");
  return rope;
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& origin) {
  const Json json = config::parse_json(text, origin, ErrorCode::kFile);
  const HfConfig c(json, origin);
  if (const Json* type = c.find("model_type"); !type || *type != "llama")
    fail(origin, "model_type", fmt::format("expected \"llama\", found {}", type ? type->dump() : "nothing"));
  if (const Json* a = c.find("architectures"); a && *a != Json::array({"LlamaForCausalLM"}))
    fail(origin, "architectures", "expected [\"LlamaForCausalLM\"], found " + a->dump());
  c.refuse_unless("hidden_act", "silu");
  c.refuse_unless("attention_bias", false);
  c.refuse_unless("mlp_bias", false);
  c.refuse_unless("partial_rotary_factor", 1.0);
  for (const char* key : {"sliding_window", "layer_types", "num_local_experts", "quantization_config", "logit_scale"})
    if (c.find(key)) fail(origin, key, "is not implemented");
  ModelConfig m;
  m.vocab_size = c.integer("vocab_size", 32000);
  m.hidden_size = c.integer("hidden_size", 4096);
  m.intermediate_size = c.integer("intermediate_size", 11008);
  m.num_hidden_layers = c.integer("num_hidden_layers", 32);
  m.num_attention_heads = c.integer("num_attention_heads", 32);
  m.num_key_value_heads = c.integer("num_key_value_heads", m.num_attention_heads);
  m.head_dim = c.find("head_dim") ? c.integer("head_dim", 0) : 0;
  m.max_position_embeddings = c.integer("max_position_embeddings", 2048);
  m.rms_norm_eps = c.number("rms_norm_eps", 1e-6);
  const Rope rope = read_rope(c, origin);
  m.rope_theta = rope.theta;
  m.rope_scaling = rope.scaling;
  m.tie_word_embeddings = c.boolean("tie_word_embeddings", false);
  m.initializer_range = c.number("initializer_range", 0.02);
  config::validate(m, origin);
  return m;
}

}  // namespace relume
