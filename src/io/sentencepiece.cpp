// SentencePiece models, through the library. It encodes a text as one sentence, in time that grows faster than the text; where the
// model allows it, words are encoded one by one and remembered, with the same ids.
#include "sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <fstream>
#include <sstream>

#include "piece_memory.h"
#include "relume/base/error.h"
#include "relume/io/corpus.h"
#include "relume/io/file.h"

namespace relume {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space in pieces

/// Fields of a protobuf message, as far as needed: varints and bytes by number. The library has checked the message.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    field = static_cast<int>(key >> 3);
    text = {};
    number = 0;
    const auto take = [&](std::size_t n) {
      text = bytes_.substr(0, n);
      bytes_.remove_prefix(std::min(n, bytes_.size()));
    };
    if (const auto type = key & 7; type == 0)
      number = varint();
    else
      take(type == 1 ? 8 : type == 5 ? 4 : static_cast<std::size_t>(varint()));
    return true;
  }
  int field = 0;
  std::uint64_t number = 0;
  std::string_view text;

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto b = static_cast<unsigned char>(bytes_[0]);
      bytes_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(b & 0x7F) << shift;
      if (b < 0x80) break;
    }
    return value;
  }
  std::string_view bytes_;
};

/// Whether a text's ids are those of its words: BPE with byte fallback, text taken as it is behind a dummy space, and no piece
/// that goes on behind the end of a word. (Numbers of fields: sentencepiece_model.proto.)
bool words_are_independent(const sentencepiece::SentencePieceProcessor& processor) {
  bool bpe = false, byte_fallback = false, identity = true, dummy_prefix = true, keeps_spaces = false, escapes = true;
  const std::string model = processor.serialized_model_proto();
  for (ProtoReader m(model); m.next();) {
    if (m.field == 2)
      for (ProtoReader trainer(m.text); trainer.next();) {
        if (trainer.field == 3) bpe = trainer.number == 2;
        if (trainer.field == 24 && trainer.number == 1) return false;  // spaces as suffixes
        if (trainer.field == 35) byte_fallback = trainer.number == 1;
      }
    if (m.field == 3)
      for (ProtoReader normalizer(m.text); normalizer.next();) {
        if (normalizer.field == 2) identity = normalizer.text.empty();  // the precompiled table of replacements
        if (normalizer.field == 3) dummy_prefix = normalizer.number == 1;
        if (normalizer.field == 4) keeps_spaces = normalizer.number == 0;
        if (normalizer.field == 5) escapes = normalizer.number == 1;
      }
  }
  if (!bpe || !byte_fallback || !identity || !dummy_prefix || !keeps_spaces || !escapes) return false;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    std::size_t at = 0;
    while (piece.compare(at, kSpace.size(), kSpace) == 0) at += kSpace.size();
    if (piece.find(kSpace, at) != std::string::npos || piece.find(' ') != std::string::npos) return false;
  }
  return true;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : Tokenizer(path) {
    { const MappedFile readable(path); }  // a clear message for a missing file; the library's names a source line
    if (const auto status = processor_.Load(path); !status.ok())
      throw Error(ErrorCode::kFile, fmt::format("{}: no SentencePiece model: {}", path, status.message()));
    bos_id_ = processor_.bos_id();
    eos_id_ = processor_.eos_id();
    by_word_ = words_are_independent(processor_);
  }
  [[nodiscard]] std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] std::string_view kind() const override { return "SentencePiece"; }

 protected:
  [[nodiscard]] std::vector<std::int32_t> encode_valid(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    if (!by_word_) {
      append(text, ids);
      return ids;
    }
    pool_.with([] { return std::make_unique<PieceMemory>(); },
               [&](PieceMemory& memory) {
                 while (!text.empty()) {
                   const std::size_t end = end_of_word(text);
                   const std::string_view word = text.substr(0, end);
                   memory.append(word, ids, [&](std::vector<std::int32_t>& out) { append(word, out); });
                   text.remove_prefix(std::min(text.size(), end + 1));  // the space: the library puts one before every word
                 }
               });
    return ids;
  }
  [[nodiscard]] std::string decode_known(std::span<const std::int32_t> ids, bool keep_special) const override {
    std::string text;
    std::vector<int> part;
    const auto flush = [&] {
      std::string decoded;
      if (const auto status = processor_.Decode(part, &decoded); !status.ok())
        throw Error(ErrorCode::kRuntime, fmt::format("[tokenizer] cannot decode: {}", status.message()));
      text += decoded;
      part.clear();
    };
    for (std::int32_t id : ids) {
      if (keep_special && processor_.IsControl(id)) {
        flush();
        text += processor_.IdToPiece(id);
      } else {
        part.push_back(id);
      }
    }
    flush();
    return text;
  }

  [[nodiscard]] std::int32_t special_id(const std::string& name) const override {
    const int id = processor_.PieceToId(name);
    return processor_.IsControl(id) ? id : -1;
  }

 private:
  void append(std::string_view text, std::vector<std::int32_t>& ids) const {
    std::vector<int> more;
    if (const auto status = processor_.Encode(text, &more); !status.ok())
      throw Error(ErrorCode::kRuntime, fmt::format("[tokenizer] cannot encode: {}", status.message()));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  /// Bytes before the first space that begins a word: one behind a character that is no space, with something behind it.
  [[nodiscard]] static std::size_t end_of_word(std::string_view text) {
    for (std::size_t at = text.find(' ', 1); at != std::string_view::npos; at = text.find(' ', at + 1))
      if (text[at - 1] != ' ' && !text.substr(0, at).ends_with(kSpace) && at + 1 < text.size()) return at;
    return text.size();
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool by_word_ = false;
  mutable Pool<PieceMemory> pool_;
};

/// The lines of some files, one after another; an empty line is no sentence.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  Lines(const std::vector<std::string>& paths, std::string field) : paths_(paths), field_(std::move(field)) { Lines::Next(); }
  [[nodiscard]] bool done() const override { return done_; }
  void Next() override {
    do {
      if (!next_line()) {
        done_ = true;
        return;
      }
    } while (line_.empty());
  }
  [[nodiscard]] const std::string& value() const override { return line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  bool next_line() {
    if (std::getline(document_, line_)) return true;
    while (!file_.is_open() || !std::getline(file_, line_)) {
      file_.close();
      if (next_ == paths_.size()) return false;
      file_.clear();
      file_.open(paths_[next_++], std::ios::binary);
      number_ = 0;
      if (!file_) throw Error(ErrorCode::kFile, fmt::format("{}: cannot be read", paths_[next_ - 1]));
    }
    ++number_;
    if (is_jsonl(paths_[next_ - 1]) && !line_.empty()) {
      document_.clear();
      document_.str(jsonl_document(line_, fmt::format("{}:{}", paths_[next_ - 1], number_), field_));
      line_.clear();
    }
    return true;
  }
  const std::vector<std::string>& paths_;
  std::string field_;
  std::size_t next_ = 0;
  std::int64_t number_ = 0;  // of the line
  std::ifstream file_;
  std::istringstream document_;  // of a .jsonl line
  std::string line_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path) { return std::make_unique<SentencePieceTokenizer>(path); }

void train_tokenizer(const std::vector<std::string>& inputs, std::int64_t vocab_size, const std::string& output, const std::string& field) {
  Lines lines(inputs, field);
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
