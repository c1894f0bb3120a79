// Hugging Face model directories: config.json, model.safetensors, tokenizer files.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "relume/io/safetensors.h"
#include "relume/model/parameters.h"

namespace relume {

class Tokenizer;

/// The shape of the model in a directory. Throws kFile naming file and key.
[[nodiscard]] ModelConfig read_hf_config(const std::string& directory);

/// Weights of a directory, in one file or in shards; F32, BF16 and F16, mixed as they come. The constructor checks that exactly the
/// expected tensors are there with the expected shapes, and lists every one that is not, before anything is allocated. Throws kFile.
class HfWeights {
 public:
  /// A safetensors file, or a directory with model.safetensors or model.safetensors.index.json. `prefix` precedes every tensor name
  /// (optimizer moments are stored the same way).
  HfWeights(const std::string& path, const ParameterLayout& layout, const std::string& prefix = "");
  /// Fills a parameter (its own layout, f32). Memory: one tensor more.
  void read(const Parameter& parameter, float* data) const;
  /// "BF16" if every tensor has that dtype, else "F32": what holds them without loss.
  [[nodiscard]] std::string_view lossless_dtype() const;

 private:
  void open_shards(const std::string& directory);
  [[nodiscard]] std::string check_tied_head() const;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const SafetensorsFile*> file_of_;  // tensor -> its file
  std::string prefix_;
};

/// Gives the current values of a parameter (its own layout, f32).
using ReadParameter = std::function<void(const Parameter&, float* data)>;

/// One named group of parameter-shaped tensors to write.
struct HfGroup {
  std::string prefix;
  ReadParameter read;
};
/// Writes parameters under their Hugging Face names and orientation, one group after another, as F32 or rounded (to nearest even) to
/// BF16. Memory: the largest parameter twice.
void write_hf_weights(const std::string& safetensors_path, const ParameterLayout& layout, const std::vector<HfGroup>& groups, std::string_view dtype = "F32");

/// Ids with a meaning to those who generate text. Absent: none.
struct SpecialTokens {
  std::optional<std::int64_t> bos, pad;
  std::vector<std::int64_t> eos;
};
/// Of config.json. Throws kFile.
[[nodiscard]] SpecialTokens read_special_tokens(const std::string& directory);
/// What ends a generated text: generation_config.json says so, else config.json. Throws kFile.
[[nodiscard]] std::vector<std::int64_t> read_stop_tokens(const std::string& directory);
/// Of a tokenizer; of none, Llama's: BOS 1, EOS 2.
[[nodiscard]] SpecialTokens special_tokens_of(const Tokenizer* tokenizer);

struct HfConfigOptions {
  std::string_view dtype = "F32";  ///< of the weights beside it
  SpecialTokens special = {};
};
/// config.json and generation_config.json.
void write_hf_config(const std::string& directory, const ModelConfig& model, const HfConfigOptions& options);

}  // namespace relume
