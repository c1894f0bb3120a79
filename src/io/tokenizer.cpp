#include "relume/io/tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <unistd.h>

#include <filesystem>

#include "relume/base/error.h"
#include "relume/io/file.h"

namespace relume {

namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    { const MappedFile readable(path); }  // a clear message for a missing file; the library's names a source line
    if (const auto status = processor_.Load(path); !status.ok())
      throw Error(ErrorCode::kFile, fmt::format("{}: no SentencePiece model: {}", path, status.message()));
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    if (const auto status = processor_.Encode(text, &ids); !status.ok())
      throw Error(ErrorCode::kRuntime, fmt::format("[tokenizer] cannot encode: {}", status.message()));
    return ids;
  }
  [[nodiscard]] std::string decode(const std::vector<std::int32_t>& ids) const override {
    for (std::int32_t id : ids)
      if (id < 0 || id >= processor_.GetPieceSize())
        throw Error(ErrorCode::kInvalidArgument, fmt::format("[tokenizer] id {} is not in 0..{}", id, processor_.GetPieceSize() - 1));
    std::string text;
    if (const auto status = processor_.Decode(ids, &text); !status.ok())
      throw Error(ErrorCode::kRuntime, fmt::format("[tokenizer] cannot decode: {}", status.message()));
    return text;
  }
  [[nodiscard]] std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] std::int32_t bos_id() const override { return processor_.bos_id(); }
  [[nodiscard]] std::int32_t eos_id() const override { return processor_.eos_id(); }
  [[nodiscard]] std::string_view kind() const override { return "SentencePiece"; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) { return std::make_unique<SentencePieceTokenizer>(path); }

void train_tokenizer(const std::vector<std::string>& inputs, std::int64_t vocab_size, const std::string& output) {
  std::string list;
  for (const std::string& input : inputs) {
    { const MappedFile readable(input); }
    if (input.find(',') != std::string::npos) throw Error(ErrorCode::kFile, fmt::format("{}: a comma in a file name is not supported here", input));
    list += (list.empty() ? "" : ",") + input;
  }
  const std::string prefix = fmt::format("{}.tmp-{}", output, getpid());
  const std::string options = fmt::format(
      "--input={} --model_prefix={} --vocab_size={} --model_type=bpe --byte_fallback=true --normalization_rule_name=identity "
      "--add_dummy_prefix=true --remove_extra_whitespaces=false --split_digits=true --allow_whitespace_only_pieces=true "
      "--unk_id=0 --bos_id=1 --eos_id=2 --pad_id=-1 --character_coverage=0.9995 --max_sentence_length=65536 --num_threads=1 "
      "--minloglevel=2",
      list, prefix, vocab_size);
  const auto status = sentencepiece::SentencePieceTrainer::Train(options);
  std::error_code ignored;
  std::filesystem::remove(prefix + ".vocab", ignored);
  if (!status.ok()) {
    std::filesystem::remove(prefix + ".model", ignored);
    throw Error(ErrorCode::kInvalidArgument, fmt::format("[tokenize train] {}; hint: a smaller --vocab-size, or more text", status.message()));
  }
  std::error_code error;
  std::filesystem::rename(prefix + ".model", output, error);
  if (error) throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be written: {}", output, error.message()));
}

}  // namespace relume
