#include "relume/io/hf_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "relume/base/check.h"
#include "relume/base/error.h"
#include "relume/config/json_file.h"
#include "relume/io/tokenizer.h"

namespace relume {

namespace {

using Json = nlohmann::json;

std::vector<std::int64_t> extents(const Shape& shape) {
  std::vector<std::int64_t> v;
  for (int i = 0; i < shape.rank(); ++i) v.push_back(shape[i]);
  return v;
}

void write_json(const std::string& path, const Json& json) {
  OutputFile file(path);
  file.write(json.dump(2) + "\n");
  file.close();
}

}  // namespace

ModelConfig read_hf_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  if (std::filesystem::is_directory(directory + "/checkpoints"))
    throw Error(ErrorCode::kFile, fmt::format("{}: is a run, not a model; hint: its models are in {}/checkpoints", directory, directory));
  return parse_model_config(config::read_text(path), path);
}

void HfWeights::open_shards(const std::string& directory) {
  const std::string path = directory + "/model.safetensors.index.json";
  const auto fail = [&](const std::string& message) { throw Error(ErrorCode::kFile, fmt::format("{}: {}", path, message)); };
  const Json index = config::parse_json(config::read_text(path), path, ErrorCode::kFile);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) fail("expected an object with \"weight_map\": tensor names and their files");
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) fail(fmt::format("weight_map \"{}\": expected a file name, found {}", tensor, file.dump()));
    const auto name = file.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos || name.find("..") != std::string::npos)
      fail(fmt::format("weight_map \"{}\": \"{}\" is no plain file name", tensor, name));
    opened.try_emplace(name, 0);
  }
  for (auto& [name, at] : opened) {
    at = files_.size();
    files_.emplace_back(directory + "/" + name);
  }
  for (const auto& [tensor, file] : index["weight_map"].items())
    if (!files_[opened[file.get<std::string>()]].has(tensor)) fail(fmt::format("says that '{}' is in {}, which does not have it", tensor, file.get<std::string>()));
  for (const auto& [name, at] : opened)
    for (const auto& [tensor, unused] : files_[at].entries()) {
      const auto said = index["weight_map"].find(tensor);
      if (said == index["weight_map"].end() || *said != name) fail(fmt::format("does not say that '{}' is in {}", tensor, name));
    }
}

HfWeights::HfWeights(const std::string& path, const ParameterLayout& layout, const std::string& prefix) : prefix_(prefix) {
  const bool directory = std::filesystem::is_directory(path);
  if (directory && !std::filesystem::exists(path + "/model.safetensors") && std::filesystem::exists(path + "/model.safetensors.index.json"))
    open_shards(path);
  else
    files_.emplace_back(directory ? path + "/model.safetensors" : path);
  for (const SafetensorsFile& file : files_)
    for (const auto& [name, unused] : file.entries()) file_of_[name] = &file;
  std::string problems;
  std::set<std::string> expected;
  for (const Parameter& p : layout.parameters)
    for (const HfPiece& piece : p.pieces) {
      const std::string name = prefix + piece.name;
      expected.insert(name);
      const auto it = file_of_.find(name);
      if (it == file_of_.end()) {
        problems += fmt::format("\n  missing    {}", name);
        continue;
      }
      const SafetensorsEntry& found = it->second->entries().at(name);
      SafetensorsEntry wanted{.dtype = found.dtype, .shape = extents(p.hf_shape(piece))};
      if (found.shape != wanted.shape)
        problems += fmt::format("\n  shape      {}: expected {}, found {}", name, wanted.shape_text(), found.shape_text());
      else if (found.dtype != "F32" && found.dtype != "BF16" && found.dtype != "F16")
        problems += fmt::format("\n  dtype      {}: expected F32, BF16 or F16, found {}", name, found.dtype);
    }
  for (const auto& [name, unused] : file_of_)
    if (name.compare(0, prefix.size(), prefix) == 0 && !expected.count(name) && !name.ends_with(".rotary_emb.inv_freq")) {
      if (name == "lm_head.weight")
        problems += check_tied_head();
      else
        problems += fmt::format("\n  unexpected {}", name);
    }
  if (!problems.empty()) throw Error(ErrorCode::kFile, fmt::format("{}: does not hold the weights of this model:{}", path, problems));
}

/// A head in the files of a model whose head is tied: fine if it is the embedding.
std::string HfWeights::check_tied_head() const {
  const auto embedding = file_of_.find("model.embed_tokens.weight");
  const auto head = file_of_.find("lm_head.weight");
  if (embedding != file_of_.end()) {
    const auto a = embedding->second->bytes("model.embed_tokens.weight"), b = head->second->bytes("lm_head.weight");
    if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) return "";
  }
  return "\n  unexpected lm_head.weight: tie_word_embeddings is true, but it differs from model.embed_tokens.weight";
}

namespace {

float from_half(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
  if (exponent == 0) return std::ldexp(static_cast<float>(fraction), -24) * (sign ? -1.f : 1.f);
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace

void HfWeights::read(const Parameter& parameter, float* data) const {
  std::vector<float> hf;
  std::vector<std::uint16_t> half;
  for (const HfPiece& piece : parameter.pieces) {
    const std::string name = prefix_ + piece.name;
    const SafetensorsFile& file = *file_of_.at(name);
    const std::string& dtype = file.entries().at(name).dtype;
    hf.resize(static_cast<std::size_t>(piece.rows * parameter.columns()));
    if (dtype == "F32") {
      file.copy(name, dtype, static_cast<std::int64_t>(hf.size()), hf.data());
    } else {
      half.resize(hf.size());
      file.copy(name, dtype, static_cast<std::int64_t>(hf.size()), half.data());
      for (std::size_t i = 0; i < hf.size(); ++i) hf[i] = dtype == "BF16" ? std::bit_cast<float>(static_cast<std::uint32_t>(half[i]) << 16) : from_half(half[i]);
    }
    copy_from_hf(parameter, piece, hf.data(), data);
  }
}

std::string_view HfWeights::lossless_dtype() const {
  return std::ranges::all_of(file_of_, [](const auto& f) { return f.second->entries().at(f.first).dtype == "BF16"; }) ? "BF16" : "F32";
}

void write_hf_weights(const std::string& path, const ParameterLayout& layout, const std::vector<HfGroup>& groups, std::string_view dtype) {
  CHECK(dtype == "F32" || dtype == "BF16");
  std::vector<SafetensorsTensor> tensors;
  std::vector<float> values, hf;  // the parameter being written, and one piece of it
  std::vector<std::uint16_t> rounded;
  const Parameter* loaded = nullptr;
  const HfGroup* loaded_group = nullptr;
  for (const HfGroup& group : groups)
    for (const Parameter& p : layout.parameters)
      for (const HfPiece& piece : p.pieces)
        tensors.push_back({group.prefix + piece.name, std::string(dtype), extents(p.hf_shape(piece)), [&, g = &group, parameter = &p, part = &piece] {
                             if (loaded != parameter || loaded_group != g) {
                               values.resize(static_cast<std::size_t>(parameter->shape.elements()));
                               g->read(*parameter, values.data());
                               loaded = parameter;
                               loaded_group = g;
                             }
                             hf.resize(static_cast<std::size_t>(part->rows * parameter->columns()));
                             copy_to_hf(*parameter, *part, values.data(), hf.data());
                             if (dtype == "F32") return std::as_bytes(std::span<const float>(hf));
                             rounded.resize(hf.size());
                             std::transform(hf.begin(), hf.end(), rounded.begin(), to_bf16);
                             return std::as_bytes(std::span<const std::uint16_t>(rounded));
                           }});
  write_safetensors(path, tensors);
}

SpecialTokens special_tokens_of(const Tokenizer* tokenizer) {
  if (!tokenizer) return {.bos = 1, .pad = {}, .eos = {2}};
  SpecialTokens s;
  if (tokenizer->bos_id() >= 0) s.bos = tokenizer->bos_id();
  if (tokenizer->eos_id() >= 0) s.eos = {tokenizer->eos_id()};
  return s;
}

namespace {

/// One token id, or a list of them.
std::vector<std::int64_t> token_ids(const Json& config, const char* key, const std::string& path) {
  if (!config.is_object()) throw Error(ErrorCode::kFile, fmt::format("{}: expected an object", path));
  const Json value = config.contains(key) ? config[key] : Json();
  std::vector<std::int64_t> ids;
  for (const Json& v : value.is_array() ? value : value.is_null() ? Json::array() : Json::array({value})) {
    if (!v.is_number_integer() || v.get<double>() < -1 || v.get<double>() > 2147483647.0)
      throw Error(ErrorCode::kFile, fmt::format("{}: {}: expected a token id, found {}", path, key, v.dump()));
    if (v.get<std::int64_t>() >= 0) ids.push_back(v.get<std::int64_t>());  // -1 is written for none
  }
  return ids;
}

Json read_json(const std::string& path) { return config::parse_json(config::read_text(path), path, ErrorCode::kFile); }

}  // namespace

SpecialTokens read_special_tokens(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Json j = read_json(path);
  const auto first = [&](const char* key) {
    const auto ids = token_ids(j, key, path);
    return ids.empty() ? std::nullopt : std::optional(ids[0]);
  };
  return {.bos = first("bos_token_id"), .pad = first("pad_token_id"), .eos = token_ids(j, "eos_token_id", path)};
}

std::vector<std::int64_t> read_stop_tokens(const std::string& directory) {
  if (const std::string path = directory + "/generation_config.json"; std::filesystem::exists(path))
    if (auto ids = token_ids(read_json(path), "eos_token_id", path); !ids.empty()) return ids;
  return read_special_tokens(directory).eos;
}

void write_hf_config(const std::string& directory, const ModelConfig& m, const HfConfigOptions& options) {
  const SpecialTokens& special = options.special;
  const Json bos = special.bos ? Json(*special.bos) : Json(), pad = special.pad ? Json(*special.pad) : Json();
  const Json eos = special.eos.empty() ? Json() : special.eos.size() == 1 ? Json(special.eos[0]) : Json(special.eos);
  const char* dtype = options.dtype == "BF16" ? "bfloat16" : "float32";
  // Both spellings of the rotary parameters: transformers 4 and 5 and converters each read another one. llama.cpp's converter takes the
  // original context from the top level.
  const RopeScaling& r = m.rope_scaling;
  const bool scaled = r.rope_type != "default";
  Json rope{{"rope_type", r.rope_type}};
  if (scaled)
    rope.update({{"factor", r.factor}, {"low_freq_factor", r.low_freq_factor}, {"high_freq_factor", r.high_freq_factor},
                 {"original_max_position_embeddings", r.original_max_position_embeddings}});
  Json parameters = rope;
  parameters["rope_theta"] = m.rope_theta;
  Json config{{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"vocab_size", m.vocab_size}, {"hidden_size", m.hidden_size},
              {"intermediate_size", m.intermediate_size}, {"num_hidden_layers", m.num_hidden_layers},
              {"num_attention_heads", m.num_attention_heads}, {"num_key_value_heads", m.kv_heads()}, {"head_dim", m.head_size()},
              {"max_position_embeddings", m.max_position_embeddings}, {"rms_norm_eps", m.rms_norm_eps}, {"rope_theta", m.rope_theta},
              {"rope_scaling", scaled ? rope : Json(nullptr)}, {"rope_parameters", parameters},
              {"tie_word_embeddings", m.tie_word_embeddings}, {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false},
              {"attention_dropout", 0.0}, {"initializer_range", m.initializer_range}, {"bos_token_id", bos}, {"eos_token_id", eos},
              {"pad_token_id", pad}, {"dtype", dtype}, {"torch_dtype", dtype}, {"use_cache", true}, {"pretraining_tp", 1}};
  if (scaled) config["original_max_position_embeddings"] = r.original_max_position_embeddings;
  write_json(directory + "/config.json", config);
  write_json(directory + "/generation_config.json", {{"_from_model_config", true}, {"bos_token_id", bos}, {"eos_token_id", eos}});
}

}  // namespace relume
