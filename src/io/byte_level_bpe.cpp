// Byte-level BPE as the Hugging Face library does it: added tokens are cut out of the text, the rest is normalised, split by regular
// expressions into pieces, and the bytes of every piece are merged in the order of the merge list. Pieces repeat, so their ids are
// remembered.
#include "byte_level_bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>

#include "piece_memory.h"
#include "relume/base/error.h"
#include "relume/base/utf8.h"
#include "relume/config/json_file.h"

namespace relume {

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kMostEntries = 1 << 24;  // of a vocabulary; more is a damaged file
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The alphabet of vocabularies: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up.
struct ByteAlphabet {
  std::array<char32_t, 256> code_point{};
  std::array<std::int16_t, 0x144> byte{};
  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      code_point[b] = itself ? b : next++;
      byte[code_point[b]] = static_cast<std::int16_t>(b);
    }
  }
  /// The bytes a vocabulary entry stands for; an entry with other characters stands for itself.
  [[nodiscard]] std::string bytes(const std::string& entry) const {
    std::string out;
    for (std::size_t at = 0; at < entry.size();) {
      const char32_t c = next_code_point(entry, at);
      if (c >= byte.size() || byte[c] < 0) return entry;
      out += static_cast<char>(byte[c]);
    }
    return out;
  }
};
const ByteAlphabet& alphabet() {
  static const ByteAlphabet a;
  return a;
}

/// A compiled pattern that cuts text into pieces.
class Splitter {
 public:
  Splitter(const std::string& pattern, bool literal, bool keep_gaps, const std::string& origin) : keep_gaps_(keep_gaps) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP), &error,
                              &offset, nullptr));
    if (!code_) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      throw Error(ErrorCode::kFile, fmt::format("{}: the pattern {} cannot be compiled: {} at byte {}", origin, pattern,
                                                reinterpret_cast<const char*>(message.data()), offset));
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // where there is no JIT, matching interprets
  }

  /// Calls `piece` for every piece of a text that is valid UTF-8.
  template <class Piece>
  void split(std::string_view text, pcre2_match_data* match, const Piece& piece) const {
    std::size_t done = 0, from = 0;
    while (from <= text.size()) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK, match, nullptr);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) throw Error(ErrorCode::kRuntime, fmt::format("[tokenizer] the split pattern failed on this text (PCRE2 error {})", found));
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match);
      if (span[0] >= span[1]) {  // empty: look on behind the next character
        from = std::max(from, span[0]);
        if (from >= text.size()) break;
        (void)next_code_point(text, from);
        continue;
      }
      if (keep_gaps_ && span[0] > done) piece(text.substr(done, span[0] - done));
      piece(text.substr(span[0], span[1] - span[0]));
      done = from = span[1];
    }
    if (keep_gaps_ && done < text.size()) piece(text.substr(done));
  }

 private:
  struct Free {
    void operator()(pcre2_code* c) const { pcre2_code_free(c); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  bool keep_gaps_;
};

/// Tokens that are found in text as they stand: the leftmost, of these the longest.
class AddedTokens {
 public:
  void add(const std::string& content, std::int32_t id) {
    auto& bucket = buckets_[static_cast<unsigned char>(content[0])];
    bucket.emplace_back(content, id);
    std::sort(bucket.begin(), bucket.end(), [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
    any_ = true;
  }
  /// Calls token(id) and text(part) in the order in which they follow each other.
  template <class Token, class Text>
  void split(std::string_view text, const Token& token, const Text& rest) const {
    std::size_t done = 0;
    for (std::size_t at = 0; any_ && at < text.size();) {
      const auto& bucket = buckets_[static_cast<unsigned char>(text[at])];
      const auto found = std::find_if(bucket.begin(), bucket.end(), [&](const auto& t) { return text.compare(at, t.first.size(), t.first) == 0; });
      if (found == bucket.end()) {
        ++at;
        continue;
      }
      if (at > done) rest(text.substr(done, at - done));
      token(found->second);
      done = at += found->first.size();
    }
    if (done < text.size()) rest(text.substr(done));
  }

 private:
  std::array<std::vector<std::pair<std::string, std::int32_t>>, 256> buckets_;
  bool any_ = false;
};

class ByteLevelBpe final : public Tokenizer {
 public:
  ByteLevelBpe(const std::string& path, const TokenizerOptions& options) : Tokenizer(path) {
    const Json j = config::parse_json(config::read_text(path), path, ErrorCode::kFile);
    if (!j.is_object() || !j.contains("model")) fail("/model", "a tokenizer", "none");
    read_model(j["model"]);
    read_normalizer(member(j, "normalizer"), "/normalizer");
    read_pre_tokenizer(member(j, "pre_tokenizer"), "/pre_tokenizer");
    if (!byte_level_) fail("/pre_tokenizer", "ByteLevel, alone or at the end of a Sequence", member(j, "pre_tokenizer").dump());
    if (const Json& d = member(j, "decoder"); !d.is_object() || d.value("type", Json()) != "ByteLevel") fail("/decoder/type", "\"ByteLevel\"", d.dump());
    read_added_tokens(member(j, "added_tokens"), options);
    read_post_processor(member(j, "post_processor"), "/post_processor");
    adds_bos_ = !template_.empty();
    if (adds_bos_) bos_id_ = template_[0];
    if (const std::int32_t end = special_id("<|endoftext|>"); end >= 0) {  // GPT-2: one token stands between texts
      if (bos_id_ < 0) bos_id_ = end;
      if (eos_id_ < 0) eos_id_ = end;
    }
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return static_cast<std::int64_t>(text_of_.size()); }
  [[nodiscard]] std::string_view kind() const override { return "byte-level BPE"; }

 protected:
  [[nodiscard]] Ids encode_valid(std::string_view text) const override {
    Ids ids;
    const auto token = [&](std::int32_t id) { ids.push_back(id); };
    pool_.with([this] { return make_scratch(); },
               [&](Scratch& scratch) {
                 raw_tokens_.split(text, token, [&](std::string_view part) {
                   std::string normalized;
                   if (compose_) part = normalized = compose(part);
                   normalized_tokens_.split(part, token, [&](std::string_view rest) { split(0, rest, scratch, ids); });
                 });
               });
    return ids;
  }

  [[nodiscard]] std::string decode_known(std::span<const std::int32_t> ids, bool keep_special) const override {
    std::string bytes;
    for (std::int32_t id : ids)
      if (keep_special || !special_[static_cast<std::size_t>(id)]) bytes += text_of_[static_cast<std::size_t>(id)];
    return replace_invalid_utf8(bytes);
  }

  [[nodiscard]] std::int32_t special_id(const std::string& name) const override {
    const auto it = id_of_added_.find(name);
    return it == id_of_added_.end() ? -1 : it->second;
  }

 private:
  struct FreeMatch {
    void operator()(pcre2_match_data* m) const { pcre2_match_data_free(m); }
  };
  /// What encoding needs of its own: one a thread at a time.
  struct Scratch {
    std::vector<std::unique_ptr<pcre2_match_data, FreeMatch>> match;  // one a stage
    PieceMemory memory;
    struct Symbol {
      std::int32_t id, before, behind;  // neighbours, -1: none; id -1: merged away
    };
    std::vector<Symbol> symbols;
  };
  struct Merge {
    std::int32_t rank, id;
  };

  [[noreturn]] void fail(const std::string& where, const std::string& expected, const std::string& found) const {
    throw Error(ErrorCode::kFile, fmt::format("{}: {}: expected {}, found {}", path_, where, expected, found.size() > 200 ? found.substr(0, 200) + "…" : found));
  }
  [[nodiscard]] static const Json& member(const Json& j, const char* key) {
    static const Json absent;
    const auto it = j.find(key);
    return it == j.end() ? absent : *it;
  }
  /// A member that must be absent, null or as given; anything else would change the ids.
  void require_neutral(const Json& j, const std::string& where, const char* key, const Json& neutral) const {
    const Json& v = member(j, key);
    if (!v.is_null() && v != neutral) fail(fmt::format("{}/{}", where, key), fmt::format("{} (nothing else is implemented)", neutral.dump()), v.dump());
  }

  void read_model(const Json& model) {
    if (!model.is_object()) fail("/model", "an object", model.dump());
    if (member(model, "type") != "BPE" && !member(model, "type").is_null()) fail("/model/type", "\"BPE\"", member(model, "type").dump());
    if (member(model, "byte_fallback") == true)
      fail("/model/byte_fallback", "false: only byte-level BPE is read from tokenizer.json", "true; hint: a SentencePiece tokenizer: take its tokenizer.model");
    require_neutral(model, "/model", "dropout", 0.0);
    require_neutral(model, "/model", "continuing_subword_prefix", "");
    require_neutral(model, "/model", "end_of_word_suffix", "");
    ignore_merges_ = member(model, "ignore_merges") == true;
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object() || vocab.empty()) fail("/model/vocab", "an object of tokens and ids", vocab.type_name());
    StringMap<std::int32_t> id_of;
    for (const auto& [entry, id] : vocab.items()) {
      if (entry.empty()) fail("/model/vocab", "tokens of at least one character", "an empty one");
      id_of[entry] = define(id, fmt::format("/model/vocab/{}", entry), alphabet().bytes(entry));
    }
    for (unsigned b = 0; b < 256; ++b) {
      std::string entry;
      append_utf8(entry, alphabet().code_point[b]);
      const auto it = id_of.find(entry);
      if (it == id_of.end()) fail("/model/vocab", "an entry for each of the 256 bytes (byte-level BPE)", fmt::format("none for byte 0x{:02X} ('{}')", b, entry));
      id_of_byte_[b] = it->second;
    }
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) fail("/model/merges", "a list", merges.type_name());
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& m = merges[rank];
      std::string left, right;
      if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        left = m[0];
        right = m[1];
      } else if (m.is_string() && std::count(m.get_ref<const std::string&>().begin(), m.get_ref<const std::string&>().end(), ' ') == 1) {
        const auto& both = m.get_ref<const std::string&>();
        left = both.substr(0, both.find(' '));
        right = both.substr(both.find(' ') + 1);
      } else {
        fail(fmt::format("/model/merges/{}", rank), "[\"a\", \"b\"] or \"a b\"", m.dump());
      }
      const auto l = id_of.find(left), r = id_of.find(right), both = id_of.find(left + right);
      if (l == id_of.end() || r == id_of.end() || both == id_of.end())
        fail(fmt::format("/model/merges/{}", rank), fmt::format("'{}', '{}' and '{}' in the vocabulary", left, right, left + right), "not all of them");
      merges_[pair_key(l->second, r->second)] = {static_cast<std::int32_t>(rank), both->second};
    }
    if (ignore_merges_)
      for (auto& [entry, id] : id_of) whole_[alphabet().bytes(entry)] = id;
  }

  /// Checks an id and notes the text it stands for.
  std::int32_t define(const Json& id, const std::string& where, std::string text) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= kMostEntries) fail(where, "an id from 0", id.dump());
    const auto at = id.get<std::size_t>();
    if (at >= text_of_.size()) {
      text_of_.resize(at + 1);
      special_.resize(at + 1);
    }
    if (!text_of_[at].empty() && text_of_[at] != text) fail(where, "an id of its own", fmt::format("{}, which is also '{}'", at, text_of_[at]));
    text_of_[at] = std::move(text);
    return static_cast<std::int32_t>(at);
  }

  void read_normalizer(const Json& n, const std::string& where) {
    if (n.is_null()) return;
    const Json type = n.is_object() ? member(n, "type") : Json();
    if (type == "NFC") {
      compose_ = true;
    } else if (type == "Sequence" && member(n, "normalizers").is_array()) {
      for (std::size_t i = 0; i < n["normalizers"].size(); ++i) read_normalizer(n["normalizers"][i], fmt::format("{}/normalizers/{}", where, i));
    } else {
      fail(where, "null or NFC", type.is_null() ? n.dump() : type.dump());
    }
  }

  void read_pre_tokenizer(const Json& p, const std::string& where) {
    const Json type = p.is_object() ? member(p, "type") : Json();
    if (byte_level_) fail(where, "ByteLevel at the end", type.dump());
    if (type == "Sequence" && member(p, "pretokenizers").is_array()) {
      for (std::size_t i = 0; i < p["pretokenizers"].size(); ++i) read_pre_tokenizer(p["pretokenizers"][i], fmt::format("{}/pretokenizers/{}", where, i));
    } else if (type == "Split") {
      const Json& pattern = member(p, "pattern");
      const bool literal = pattern.is_object() && member(pattern, "String").is_string(), regex = pattern.is_object() && member(pattern, "Regex").is_string();
      if (literal == regex) fail(where + "/pattern", "{\"Regex\": …} or {\"String\": …}", pattern.dump());
      const bool isolated = member(p, "behavior") == "Isolated" && member(p, "invert") != true;
      const bool matches_alone = member(p, "behavior") == "Removed" && member(p, "invert") == true;
      if (!isolated && !matches_alone)
        fail(where + "/behavior", "\"Isolated\", or \"Removed\" with invert", fmt::format("{}, invert {}", member(p, "behavior").dump(), member(p, "invert").dump()));
      stages_.emplace_back(pattern.at(literal ? "String" : "Regex").get<std::string>(), literal, isolated, path_ + ": " + where);
    } else if (type == "Digits") {
      stages_.emplace_back(member(p, "individual_digits") == true ? R"(\p{N})" : R"(\p{N}+)", false, true, path_ + ": " + where);
    } else if (type == "ByteLevel") {
      require_neutral(p, where, "add_prefix_space", false);
      if (member(p, "use_regex") != false) stages_.emplace_back(kGpt2Pattern, false, true, path_ + ": " + where);
      byte_level_ = true;
    } else {
      fail(where + "/type", "ByteLevel, Split, Digits or a Sequence of them", type.dump());
    }
  }

  void read_added_tokens(const Json& tokens, const TokenizerOptions& options) {
    if (tokens.is_null()) return;
    if (!tokens.is_array()) fail("/added_tokens", "a list", tokens.type_name());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Json& t = tokens[i];
      const std::string where = fmt::format("/added_tokens/{}", i);
      if (!t.is_object() || !member(t, "content").is_string() || t["content"].get_ref<const std::string&>().empty())
        fail(where, "an object with \"content\"", t.dump());
      for (const char* key : {"lstrip", "rstrip", "single_word"}) require_neutral(t, where, key, false);
      const auto& content = t["content"].get_ref<const std::string&>();
      const std::int32_t id = define(member(t, "id"), where + "/id", alphabet().bytes(content));
      const bool special = member(t, "special") == true;
      special_[static_cast<std::size_t>(id)] = special;
      id_of_added_[content] = id;
      if (special && options.split_special_tokens) continue;
      if (member(t, "normalized") == true)
        normalized_tokens_.add(compose_ ? compose(content) : content, id);
      else
        raw_tokens_.add(content, id);
    }
  }

  void read_post_processor(const Json& p, const std::string& where) {
    if (p.is_null()) return;
    const Json type = p.is_object() ? member(p, "type") : Json();
    if (type == "ByteLevel") return;  // moves offsets only
    if (type == "Sequence" && member(p, "processors").is_array()) {
      for (std::size_t i = 0; i < p["processors"].size(); ++i) read_post_processor(p["processors"][i], fmt::format("{}/processors/{}", where, i));
      return;
    }
    if (type != "TemplateProcessing" || !member(p, "single").is_array()) fail(where + "/type", "ByteLevel, TemplateProcessing or a Sequence of them", type.dump());
    bool text_seen = false;
    for (const Json& part : p["single"]) {
      if (part.is_object() && part.contains("Sequence")) {
        text_seen = true;
        continue;
      }
      const Json name = part.is_object() && part.contains("SpecialToken") && part["SpecialToken"].is_object() ? member(part["SpecialToken"], "id") : Json();
      const auto it = name.is_string() ? id_of_added_.find(name.get_ref<const std::string&>()) : id_of_added_.end();
      if (it == id_of_added_.end()) fail(where + "/single", "the text and added tokens around it", part.dump());
      if (text_seen)
        eos_id_ = it->second;
      else
        template_.push_back(it->second);
    }
    if (template_.size() > 1) fail(where + "/single", "at most one token before the text", p["single"].dump());
  }

  /// NFC. U+11A7, which composes with nothing, is kept away from utf8proc: version 2.8 drops it behind a Hangul syllable.
  [[nodiscard]] static std::string compose(std::string_view text) {
    constexpr std::string_view kAlone = "\xE1\x86\xA7";
    std::string result;
    while (true) {
      const std::size_t end = text.find(kAlone);
      const std::string_view part = text.substr(0, end);
      utf8proc_uint8_t* composed = nullptr;
      const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()), &composed,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (bytes < 0) throw Error(ErrorCode::kRuntime, fmt::format("[tokenizer] cannot normalise the text: {}", utf8proc_errmsg(bytes)));
      result.append(reinterpret_cast<const char*>(composed), static_cast<std::size_t>(bytes));
      std::free(composed);
      if (end == std::string_view::npos) return result;
      result += kAlone;
      text.remove_prefix(end + kAlone.size());
    }
  }

  [[nodiscard]] std::unique_ptr<Scratch> make_scratch() const {
    auto s = std::make_unique<Scratch>();
    for (std::size_t i = 0; i < stages_.size(); ++i) s->match.emplace_back(pcre2_match_data_create(1, nullptr));
    return s;
  }

  void split(std::size_t stage, std::string_view text, Scratch& scratch, Ids& ids) const {
    if (stage < stages_.size()) {
      stages_[stage].split(text, scratch.match[stage].get(), [&](std::string_view piece) { split(stage + 1, piece, scratch, ids); });
      return;
    }
    scratch.memory.append(text, ids, [&](Ids& out) {
      if (const auto whole = whole_.find(text); whole != whole_.end())
        out.push_back(whole->second);
      else
        merge(text, scratch, out);
    });
  }

  /// The lowest rank first, the leftmost among equals. Cost: n log n for n bytes.
  void merge(std::string_view piece, Scratch& scratch, Ids& ids) const {
    auto& symbols = scratch.symbols;
    const auto n = static_cast<std::int32_t>(piece.size());
    symbols.resize(piece.size());
    for (std::int32_t i = 0; i < n; ++i)
      symbols[static_cast<std::size_t>(i)] = {id_of_byte_[static_cast<unsigned char>(piece[static_cast<std::size_t>(i)])], i - 1, i + 1 < n ? i + 1 : -1};
    struct Candidate {
      std::int32_t rank, left, left_id, right_id, id;
      bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }  // top(): the lowest
    };
    std::priority_queue<Candidate> queue;
    const auto at = [&](std::int32_t i) -> Scratch::Symbol& { return symbols[static_cast<std::size_t>(i)]; };
    const auto offer = [&](std::int32_t left) {
      if (left < 0 || at(left).behind < 0) return;
      const std::int32_t l = at(left).id, r = at(at(left).behind).id;
      if (const auto m = merges_.find(pair_key(l, r)); m != merges_.end()) queue.push({m->second.rank, left, l, r, m->second.id});
    };
    for (std::int32_t i = 0; i + 1 < n; ++i) offer(i);
    while (!queue.empty()) {
      const Candidate c = queue.top();
      queue.pop();
      const std::int32_t right = at(c.left).behind;
      if (at(c.left).id != c.left_id || right < 0 || at(right).id != c.right_id) continue;  // one of the two has merged since
      at(c.left).id = c.id;
      at(c.left).behind = at(right).behind;
      if (at(right).behind >= 0) at(at(right).behind).before = c.left;
      at(right).id = -1;
      offer(at(c.left).before);
      offer(c.left);
    }
    for (std::int32_t i = 0; i >= 0 && i < n; i = at(i).behind) ids.push_back(at(i).id);
  }

  [[nodiscard]] static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }

  std::vector<std::string> text_of_;  // bytes of every id; empty: no such token
  std::vector<bool> special_;
  std::array<std::int32_t, 256> id_of_byte_{};
  std::unordered_map<std::uint64_t, Merge> merges_;
  StringMap<std::int32_t> whole_;  // with ignore_merges: pieces that are a token as they stand
  StringMap<std::int32_t> id_of_added_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::vector<Splitter> stages_;
  Ids template_;  // what precedes a text
  bool ignore_merges_ = false, compose_ = false, byte_level_ = false;
  mutable Pool<Scratch> pool_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_byte_level_bpe(const std::string& path, const TokenizerOptions& options) {
  return std::make_unique<ByteLevelBpe>(path, options);
}

}  // namespace relume
