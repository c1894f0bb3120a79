// Text to token ids and back.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace relume {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of a text, without what add_special() puts around them. Any number of threads may encode at once.
  /// Throws kFile (byte) if the text is not UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// Text of some ids; bytes that make no character become U+FFFD. Control and special tokens vanish unless they are to be kept.
  /// Throws kInvalidArgument for an id that is not in the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool keep_special = false) const;

  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;  ///< one more than the largest id
  [[nodiscard]] std::int32_t bos_id() const { return bos_id_; }  ///< -1: none
  [[nodiscard]] std::int32_t eos_id() const { return eos_id_; }  ///< -1: none
  [[nodiscard]] bool adds_bos() const { return adds_bos_; }      ///< whether a text begins with BOS when a model is asked to read it
  [[nodiscard]] virtual std::string_view kind() const = 0;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Takes BOS, EOS and add_bos_token from the tokenizer_config.json beside the file, if there is one. Throws kFile.
  void read_companion_config();

 protected:
  explicit Tokenizer(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] virtual std::vector<std::int32_t> encode_valid(std::string_view text) const = 0;
  [[nodiscard]] virtual std::string decode_known(std::span<const std::int32_t> ids, bool keep_special) const = 0;
  [[nodiscard]] virtual std::int32_t special_id(const std::string& name) const = 0;  ///< -1: no such token
  std::string path_;
  std::int32_t bos_id_ = -1, eos_id_ = -1;
  bool adds_bos_ = true;
};

struct TokenizerOptions {
  /// Special tokens of a tokenizer.json that stand in the text are read as text, not as the control tokens they name. (SentencePiece
  /// models never see control tokens in text.)
  bool split_special_tokens = false;
};

/// Reads a SentencePiece model, a tokenizer.json (byte-level BPE), or the one of the two a directory holds. tokenizer_config.json
/// beside it says which tokens begin and end a text. Throws kFile, naming what of a tokenizer.json relume does not do.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const TokenizerOptions& options = {});

/// The tokenizer file of a Hugging Face directory, or "" if it has none.
[[nodiscard]] std::string find_tokenizer(const std::string& directory);

/// Copies the files of a tokenizer (see load_tokenizer) into a model directory under the names other tools expect, unchanged, and
/// writes the tokenizer_config.json that transformers needs where there is none.
void export_tokenizer(const Tokenizer& tokenizer, const std::string& directory, std::int64_t max_tokens);

/// Trains a SentencePiece BPE model as Llama 2 defines it: byte fallback, identity normalisation, dummy prefix, digits split,
/// unk 0, bos 1, eos 2. Inputs are text files, a sentence a line; of .jsonl files the documents in `field`. Deterministic. Throws kFile or
/// kInvalidArgument.
void train_tokenizer(const std::vector<std::string>& inputs, std::int64_t vocab_size, const std::string& output, const std::string& field = "text");

/// Decodes tokens one by one and gives out whole characters only: bytes that may still become one are held back.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Tokens that are context: their text is not given out, but what follows is decoded as their continuation.
  void begin(std::span<const std::int32_t> ids);
  [[nodiscard]] std::string push(std::int32_t id);
  [[nodiscard]] std::string finish();  ///< what was held back

 private:
  [[nodiscard]] std::string emit(bool all);
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;  // a window of what came last
  std::size_t emitted_ = 0;        // bytes of its text that were given out
};

}  // namespace relume
