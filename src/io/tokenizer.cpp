#include "relume/io/tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <fstream>

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

/// The lines of some files, one after another; an empty line is no sentence.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& paths) : paths_(paths) { Lines::Next(); }
  [[nodiscard]] bool done() const override { return done_; }
  void Next() override {
    while (true) {
      while (file_.is_open() && std::getline(file_, line_))
        if (!line_.empty()) return;
      file_.close();
      if (next_ == paths_.size()) break;
      const std::string& path = paths_[next_++];
      file_.clear();
      file_.open(path, std::ios::binary);
      if (!file_) throw Error(ErrorCode::kFile, fmt::format("{}: cannot be read", path));
    }
    done_ = true;
  }
  [[nodiscard]] const std::string& value() const override { return line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& paths_;
  std::size_t next_ = 0;
  std::ifstream file_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) { return std::make_unique<SentencePieceTokenizer>(path); }

void train_tokenizer(const std::vector<std::string>& inputs, std::int64_t vocab_size, const std::string& output) {
  Lines lines(inputs);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", "bpe"}, {"vocab_size", std::to_string(vocab_size)}, {"byte_fallback", "true"}, {"normalization_rule_name", "identity"},
       {"add_dummy_prefix", "true"}, {"remove_extra_whitespaces", "false"}, {"split_digits", "true"}, {"allow_whitespace_only_pieces", "true"},
       {"unk_id", "0"}, {"bos_id", "1"}, {"eos_id", "2"}, {"pad_id", "-1"}, {"character_coverage", "0.9995"}, {"max_sentence_length", "65536"},
       {"num_threads", "1"}, {"minloglevel", "2"}},
      &lines, &model);
  if (!status.ok())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("[tokenize train] {}; hint: a smaller --vocab-size, or more text", status.message()));
  write_file_atomically(output, model);
}

}  // namespace relume
