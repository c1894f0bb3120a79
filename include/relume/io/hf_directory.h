// Hugging Face model directories: config.json, model.safetensors, tokenizer files.
#pragma once
#include <functional>
#include <string>

#include "relume/io/safetensors.h"
#include "relume/model/parameters.h"

namespace relume {

/// The shape of the model in a directory. Throws kFile naming file and key.
[[nodiscard]] ModelConfig read_hf_config(const std::string& directory);

/// Weights of a directory. The constructor checks that exactly the expected tensors are there with the expected shapes and
/// dtype, and lists every one that is not, before anything is allocated. Throws kFile.
class HfWeights {
 public:
  /// `prefix` precedes every tensor name (optimizer moments are stored the same way).
  HfWeights(const std::string& safetensors_path, const ParameterLayout& layout, const std::string& prefix = "");
  /// Fills a parameter (its own layout, f32).
  void read(const Parameter& parameter, float* data) const;

 private:
  SafetensorsFile file_;
  std::string prefix_;
};

/// Gives the current values of a parameter (its own layout, f32).
using ReadParameter = std::function<void(const Parameter&, float* data)>;

/// One named group of parameter-shaped tensors to write.
struct HfGroup {
  std::string prefix;
  ReadParameter read;
};
/// Writes parameters under their Hugging Face names and orientation, one group after another.
/// Memory: the largest parameter twice.
void write_hf_weights(const std::string& safetensors_path, const ParameterLayout& layout, const std::vector<HfGroup>& groups);

/// config.json, generation_config.json and, with a tokenizer, tokenizer.model and tokenizer_config.json.
void write_hf_config(const std::string& directory, const ModelConfig& model, const std::string& tokenizer_path);

}  // namespace relume
