// Text to token ids and back.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace relume {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  [[nodiscard]] virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  [[nodiscard]] virtual std::int32_t bos_id() const = 0;  ///< -1: none
  [[nodiscard]] virtual std::int32_t eos_id() const = 0;  ///< -1: none
  [[nodiscard]] virtual std::string_view kind() const = 0;
};

/// Reads a SentencePiece model. Throws kFile if it is none.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

/// Trains a SentencePiece BPE model as Llama 2 defines it: byte fallback, identity normalisation, dummy prefix, digits split,
/// unk 0, bos 1, eos 2. Inputs are text files, a sentence a line. Deterministic. Throws kFile or kInvalidArgument.
void train_tokenizer(const std::vector<std::string>& inputs, std::int64_t vocab_size, const std::string& output);

}  // namespace relume
