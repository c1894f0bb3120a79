#include "relume/io/tokenizer.h"

#include <fmt/format.h>

#include <array>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "byte_level_bpe.h"
#include "relume/base/error.h"
#include "relume/base/utf8.h"
#include "relume/config/json_file.h"
#include "relume/io/file.h"
#include "sentencepiece.h"

namespace relume {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string beside(const std::string& path, const char* name) { return (fs::path(path).parent_path() / name).string(); }

/// "…" or {"content": "…"}, as tokenizer_config.json names a token; "" for null or absent.
std::string named_token(const nlohmann::json& config, const char* key) {
  if (!config.contains(key)) return "";
  const auto& v = config[key];
  if (v.is_string()) return v;
  return v.is_object() && v.contains("content") && v["content"].is_string() ? v["content"].get<std::string>() : "";
}

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  if (const std::size_t valid = valid_utf8_prefix(text); valid < text.size())
    throw Error(ErrorCode::kFile, fmt::format("the text is not UTF-8: byte {} is 0x{:02X}; hint: iconv -f latin1 -t utf-8, or whatever it is encoded in", valid,
                                              static_cast<unsigned char>(text[valid])));
  return encode_valid(text);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool keep_special) const {
  for (std::int32_t id : ids)
    if (id < 0 || id >= vocab_size())
      throw Error(ErrorCode::kInvalidArgument, fmt::format("[tokenizer] id {} is not in 0..{}", id, vocab_size() - 1));
  return decode_known(ids, keep_special);
}

void Tokenizer::read_companion_config() {
  const std::string path = beside(path_, "tokenizer_config.json");
  if (!fs::exists(path)) return;
  const nlohmann::json config = config::parse_json(config::read_text(path), path, ErrorCode::kFile);
  if (!config.is_object()) throw Error(ErrorCode::kFile, fmt::format("{}: expected an object", path));
  for (const auto& [key, id] : {std::pair{"bos_token", &bos_id_}, std::pair{"eos_token", &eos_id_}})
    if (const std::string name = named_token(config, key); !name.empty())
      if (const std::int32_t found = special_id(name); found >= 0) *id = found;
  if (config.contains("add_bos_token") && config["add_bos_token"].is_boolean()) adds_bos_ = config["add_bos_token"];
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const TokenizerOptions& options) {
  if (fs::is_directory(path)) {
    const std::string file = find_tokenizer(path);
    if (file.empty()) throw Error(ErrorCode::kFile, fmt::format("{}: neither tokenizer.model nor tokenizer.json is there", path));
    return load_tokenizer(file, options);
  }
  std::unique_ptr<Tokenizer> tokenizer = fs::path(path).extension() == ".json" ? load_byte_level_bpe(path, options) : load_sentencepiece(path);
  tokenizer->read_companion_config();
  return tokenizer;
}

std::string find_tokenizer(const std::string& directory) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    if (const std::string path = directory + "/" + name; fs::exists(path)) return path;
  return "";
}

void export_tokenizer(const Tokenizer& tokenizer, const std::string& directory, std::int64_t max_tokens) {
  const bool json = fs::path(tokenizer.path()).extension() == ".json";
  fs::copy_file(tokenizer.path(), directory + (json ? "/tokenizer.json" : "/tokenizer.model"));
  if (const std::string config = beside(tokenizer.path(), "tokenizer_config.json"); fs::exists(config)) {
    fs::copy_file(config, directory + "/tokenizer_config.json");
    return;
  }
  const auto name = [&](std::int32_t id) { return id < 0 ? Json(nullptr) : Json(tokenizer.decode(std::array{id}, true)); };
  // transformers 5 adds no BOS without add_bos_token; 4 does not know the name 5 gives to the class of tokenizer.json
  Json config = json ? Json{{"tokenizer_class", "PreTrainedTokenizerFast"}}
                     : Json{{"tokenizer_class", "LlamaTokenizer"}, {"legacy", false}, {"add_bos_token", tokenizer.adds_bos()}, {"add_eos_token", false}, {"unk_token", "<unk>"}};
  config.update({{"bos_token", name(tokenizer.bos_id())}, {"eos_token", name(tokenizer.eos_id())}, {"pad_token", nullptr},
                 {"clean_up_tokenization_spaces", false}, {"model_max_length", max_tokens}});
  write_file_atomically(directory + "/tokenizer_config.json", config.dump(2) + "\n");
}

void TextStream::begin(std::span<const std::int32_t> ids) {
  ids_.assign(ids.begin(), ids.end());
  emitted_ = tokenizer_.decode(ids_).size();
}

std::string TextStream::push(std::int32_t id) {
  ids_.push_back(id);
  return emit(false);
}

std::string TextStream::finish() { return emit(true); }

std::string TextStream::emit(bool all) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  constexpr std::size_t kUnfinished = 3, kWindow = 64;  // bytes a character can lack its last of; tokens
  const std::string text = tokenizer_.decode(ids_);
  std::size_t end = text.size();
  if (!all)
    for (std::size_t i = 0; i < kUnfinished && end >= kReplacement.size() && text.compare(end - kReplacement.size(), kReplacement.size(), kReplacement) == 0; ++i)
      end -= kReplacement.size();
  std::string out = end > emitted_ ? text.substr(emitted_, end - emitted_) : "";
  emitted_ = std::max(emitted_, end);
  if (end == text.size() && ids_.size() > kWindow) {  // nothing held back: the last token is context enough
    ids_.erase(ids_.begin(), ids_.end() - 1);
    emitted_ = tokenizer_.decode(ids_).size();
  }
  return out;
}

}  // namespace relume
