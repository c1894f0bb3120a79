#include "relume/io/hf_directory.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

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
  return parse_model_config(config::read_text(path), path);
}

HfWeights::HfWeights(const std::string& path, const ParameterLayout& layout, const std::string& prefix) : file_(path), prefix_(prefix) {
  std::string problems;
  std::set<std::string> expected;
  for (const Parameter& p : layout.parameters)
    for (const HfPiece& piece : p.pieces) {
      const std::string name = prefix + piece.name;
      expected.insert(name);
      const auto it = file_.entries().find(name);
      if (it == file_.entries().end()) {
        problems += fmt::format("\n  missing    {}", name);
        continue;
      }
      SafetensorsEntry wanted{.dtype = "F32", .shape = extents(p.hf_shape(piece))};
      if (it->second.shape != wanted.shape)
        problems += fmt::format("\n  shape      {}: expected {}, found {}", name, wanted.shape_text(), it->second.shape_text());
      else if (it->second.dtype != "F32")
        problems += fmt::format("\n  dtype      {}: expected F32, found {}", name, it->second.dtype);
    }
  for (const auto& [name, unused] : file_.entries())
    if (name.compare(0, prefix.size(), prefix) == 0 && !expected.count(name) && !name.ends_with(".rotary_emb.inv_freq"))
      problems += fmt::format("\n  unexpected {}", name);
  if (!problems.empty()) throw Error(ErrorCode::kFile, fmt::format("{}: does not hold the weights of this model:{}", path, problems));
}

void HfWeights::read(const Parameter& parameter, float* data) const {
  std::vector<float> hf;
  for (const HfPiece& piece : parameter.pieces) {
    hf.resize(static_cast<std::size_t>(piece.rows * parameter.columns()));
    file_.copy(prefix_ + piece.name, "F32", static_cast<std::int64_t>(hf.size()), hf.data());
    copy_from_hf(parameter, piece, hf.data(), data);
  }
}

void write_hf_weights(const std::string& path, const ParameterLayout& layout, const std::vector<HfGroup>& groups) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<float> values, hf;  // the parameter being written, and one piece of it
  const Parameter* loaded = nullptr;
  const HfGroup* loaded_group = nullptr;
  for (const HfGroup& group : groups)
    for (const Parameter& p : layout.parameters)
      for (const HfPiece& piece : p.pieces)
        tensors.push_back({group.prefix + piece.name, "F32", extents(p.hf_shape(piece)), [&, g = &group, parameter = &p, part = &piece] {
                             if (loaded != parameter || loaded_group != g) {
                               values.resize(static_cast<std::size_t>(parameter->shape.elements()));
                               g->read(*parameter, values.data());
                               loaded = parameter;
                               loaded_group = g;
                             }
                             hf.resize(static_cast<std::size_t>(part->rows * parameter->columns()));
                             copy_to_hf(*parameter, *part, values.data(), hf.data());
                             return std::as_bytes(std::span<const float>(hf));
                           }});
  write_safetensors(path, tensors);
}

void write_hf_config(const std::string& directory, const ModelConfig& m, const std::string& tokenizer_path) {
  std::int32_t bos = 1, eos = 2;
  if (!tokenizer_path.empty()) {
    const auto tokenizer = load_tokenizer(tokenizer_path);
    bos = tokenizer->bos_id();
    eos = tokenizer->eos_id();
    std::filesystem::copy_file(tokenizer_path, directory + "/tokenizer.model");
    write_json(directory + "/tokenizer_config.json",
               {{"tokenizer_class", "LlamaTokenizer"}, {"legacy", false}, {"add_bos_token", true}, {"add_eos_token", false}, {"bos_token", "<s>"},
                {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", nullptr}, {"clean_up_tokenization_spaces", false},
                {"model_max_length", m.max_position_embeddings}});
  }
  // Both spellings of the rotary parameters: transformers 4 and 5 and converters each read another one.
  write_json(directory + "/config.json",
             {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"vocab_size", m.vocab_size}, {"hidden_size", m.hidden_size},
              {"intermediate_size", m.intermediate_size}, {"num_hidden_layers", m.num_hidden_layers},
              {"num_attention_heads", m.num_attention_heads}, {"num_key_value_heads", m.kv_heads()}, {"head_dim", m.head_size()},
              {"max_position_embeddings", m.max_position_embeddings}, {"rms_norm_eps", m.rms_norm_eps}, {"rope_theta", m.rope_theta},
              {"rope_scaling", nullptr}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", m.rope_theta}}},
              {"tie_word_embeddings", m.tie_word_embeddings}, {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false},
              {"attention_dropout", 0.0}, {"initializer_range", m.initializer_range}, {"bos_token_id", bos}, {"eos_token_id", eos},
              {"pad_token_id", nullptr}, {"dtype", "float32"}, {"torch_dtype", "float32"}, {"use_cache", true}, {"pretraining_tp", 1}});
  write_json(directory + "/generation_config.json", {{"_from_model_config", true}, {"bos_token_id", bos}, {"eos_token_id", eos}});
}

}  // namespace relume
