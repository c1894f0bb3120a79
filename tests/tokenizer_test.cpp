// Tokenizers against what the reference libraries say (tests/data/*/cases.jsonl, made by make_fixtures.py), and the corpus made with them.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "files.h"
#include "relume/base/utf8.h"
#include "relume/io/corpus.h"
#include "relume/io/token_shard.h"
#include "relume/io/tokenizer.h"
#include "support.h"

using namespace relume;
using namespace relume::test;
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(Json::parse(line));
  return rows;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  TextStream stream(tokenizer);
  std::string text;
  for (std::int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

/// bpe-tiny's tokenizer.json with a change.
template <class Change>
std::string write_changed(const TemporaryDirectory& dir, const Change& change) {
  Json j = Json::parse(read_text_file(data_path("bpe-tiny/tokenizer.json")));
  change(j);
  std::ofstream(dir / "tokenizer.json") << j.dump();
  return dir / "tokenizer.json";
}

}  // namespace

TEST_CASE("tokenizer.json gives the ids and texts of the reference library") {
  const auto t = load_tokenizer(data_path("bpe-tiny"));
  CHECK(t->kind() == "byte-level BPE");
  CHECK(t->vocab_size() == 1000);
  CHECK(t->bos_id() == 998);
  CHECK(t->eos_id() == 999);
  CHECK(t->adds_bos());
  for (const Json& row : read_lines(data_path("bpe-tiny/cases.jsonl"))) {
    const std::string text = row["text"];
    INFO(text);
    const auto with_special = row["ids_with_special"].get<Ids>();
    CHECK(t->encode(text) == row["ids"].get<Ids>());
    CHECK(t->decode(row["ids"].get<Ids>()) == row["decoded"]);
    CHECK(t->decode(with_special, true) == row["decoded_with_special"]);
    CHECK(streamed(*t, with_special) == row["decoded"]);
  }
  for (const Json& row : read_lines(data_path("bpe-tiny/decode.jsonl"))) {
    CHECK(t->decode(row["ids"].get<Ids>()) == row["decoded"]);
    CHECK(t->decode(row["ids"].get<Ids>(), true) == row["decoded_with_special"]);
    CHECK(streamed(*t, row["ids"].get<Ids>()) == row["decoded"]);
  }
}

TEST_CASE("SentencePiece models give the ids and texts of the library, word by word or whole") {
  const auto t = load_tokenizer(data_path("spm-tiny"));
  CHECK(t->kind() == "SentencePiece");
  CHECK(t->vocab_size() == 800);
  CHECK(t->bos_id() == 1);
  CHECK(t->eos_id() == 2);
  CHECK(t->adds_bos());
  CHECK(error_of([&] { (void)t->decode(Ids{5, 800}); }).find("id 800 is not in 0..799") != std::string::npos);
  CHECK(error_of([] { (void)load_tokenizer(data_path("remat-tiny.safetensors")); }).find("no SentencePiece model") != std::string::npos);
  CHECK(error_of([] { (void)load_tokenizer("nowhere.model"); }).find("cannot be opened") != std::string::npos);
  for (const Json& row : read_lines(data_path("spm-tiny/cases.jsonl"))) {
    const std::string text = row["text"];
    INFO(text);
    CHECK(t->encode(text) == row["ids"].get<Ids>());
    CHECK(t->decode(row["ids"].get<Ids>()) == row["decoded"]);
    CHECK(streamed(*t, row["ids"].get<Ids>()) == row["decoded"]);
  }
  for (const Json& row : read_lines(data_path("spm-tiny/decode.jsonl"))) {
    CHECK(t->decode(row["ids"].get<Ids>()) == row["decoded"]);
    CHECK(streamed(*t, row["ids"].get<Ids>()) == row["decoded"]);
  }
}

TEST_CASE("both forms of the merge list are read, and pieces that are tokens are taken whole where the file says so") {
  const TemporaryDirectory dir;
  const auto reference = load_tokenizer(data_path("bpe-tiny/tokenizer.json"));
  const auto old_form = load_tokenizer(write_changed(dir, [](Json& j) {
    for (Json& m : j["model"]["merges"]) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  }));
  const auto merging = load_tokenizer(write_changed(dir, [](Json& j) { j["model"]["ignore_merges"] = false; }));
  const std::string text = "license, including 12345 \xF0\x9F\x98\x80s\n\n  and more";
  CHECK(old_form->encode(text) == reference->encode(text));
  CHECK(merging->encode(text) != reference->encode(text));
  CHECK(merging->decode(merging->encode(text)) == text);
}

TEST_CASE("special tokens in a text are tokens, or text where that is asked for") {
  const auto t = load_tokenizer(data_path("bpe-tiny")), split = load_tokenizer(data_path("bpe-tiny"), {.split_special_tokens = true});
  const std::string text = "a<|end_of_text|>b";
  CHECK(t->encode(text) == Ids{t->encode("a")[0], 999, t->encode("b")[0]});
  CHECK(t->decode(t->encode(text)) == "ab");
  CHECK(split->decode(split->encode(text)) == text);
}

TEST_CASE("NFC is applied to what is no added token") {
  const TemporaryDirectory dir;
  const auto t = load_tokenizer(write_changed(dir, [](Json& j) {
    j["normalizer"] = {{"type", "NFC"}};
    j["added_tokens"].push_back({{"id", 1000}, {"content", "e\xCC\x81!"}, {"special", false}, {"normalized", false}});
    j["added_tokens"].push_back({{"id", 1001}, {"content", "e\xCC\x81?"}, {"special", false}, {"normalized", true}});
  }));
  CHECK(t->decode(t->encode("cafe\xCC\x81")) == "caf\xC3\xA9");
  const std::string hangul = "\xEB\x8E\x8C\xE1\x86\xA7x";  // a syllable, and U+11A7, which composes with nothing
  CHECK(t->decode(t->encode(hangul)) == hangul);
  CHECK(t->encode("e\xCC\x81!") == Ids{1000});  // as it stands
  CHECK(t->encode("\xC3\xA9?") == Ids{1001});    // in the normalised text
}

TEST_CASE("what a tokenizer.json asks for and relume does not do is refused by name") {
  const TemporaryDirectory dir;
  const auto refusal = [&](const auto& change) { return error_of([&] { (void)load_tokenizer(write_changed(dir, change)); }); };
  const auto has = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  has(refusal([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }), "/normalizer: expected null or NFC, found \"Lowercase\"");
  has(refusal([](Json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }), "/pre_tokenizer/type: expected ByteLevel");
  has(refusal([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; }), "/pre_tokenizer/pretokenizers/0/behavior");
  has(refusal([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }), "cannot be compiled");
  has(refusal([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }), "/pre_tokenizer/pretokenizers/1/add_prefix_space");
  has(refusal([](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }), "/pre_tokenizer: expected ByteLevel");
  has(refusal([](Json& j) { j["decoder"] = {{"type", "Metaspace"}}; }), "/decoder/type");
  has(refusal([](Json& j) { j["post_processor"] = {{"type", "RobertaProcessing"}}; }), "/post_processor/type");
  has(refusal([](Json& j) { j["added_tokens"][0]["lstrip"] = true; }), "/added_tokens/0/lstrip");
  has(refusal([](Json& j) { j["added_tokens"][0]["id"] = 5; }), "/added_tokens/0/id: expected an id of its own");
  has(refusal([](Json& j) { j["model"]["type"] = "Unigram"; }), "/model/type: expected \"BPE\", found \"Unigram\"");
  has(refusal([](Json& j) { j["model"]["byte_fallback"] = true; }), "take its tokenizer.model");
  has(refusal([](Json& j) { j["model"]["dropout"] = 0.1; }), "/model/dropout");
  has(refusal([](Json& j) { j["model"]["vocab"].erase("!"); }), "none for byte 0x21");
  has(refusal([](Json& j) { j["model"]["vocab"]["!"] = -1; }), "/model/vocab/!: expected an id from 0");
  has(refusal([](Json& j) { j["model"]["vocab"]["!"] = 4000000000; }), "expected an id from 0");
  has(refusal([](Json& j) { j["model"]["merges"][3] = "abc"; }), "/model/merges/3: expected [\"a\", \"b\"]");
  has(refusal([](Json& j) { j["model"]["merges"][3] = {"q", "\xC4\xA0zzz"}; }), "in the vocabulary");
  has(error_of([] { (void)load_tokenizer(data_path("bpe-tiny"))->encode("ab\xFFz"); }), "not UTF-8: byte 2 is 0xFF");
  has(error_of([] { (void)load_tokenizer(data_path("hf-llama-tiny")); }), "neither tokenizer.model nor tokenizer.json");
}

TEST_CASE("invalid UTF-8 is found, and becomes one replacement a maximal prefix") {
  const std::string euro = "\xE2\x82\xAC";
  CHECK(valid_utf8_prefix("a" + euro) == 4);
  for (const char* bad : {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5", "\x80", "\xE2\x82"}) CHECK(valid_utf8_prefix(bad) == 0);
  CHECK(replace_invalid_utf8("x\xE2\x82y") == "x\xEF\xBF\xBDy");
  CHECK(replace_invalid_utf8("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  std::size_t at = 0;
  CHECK(next_code_point("\xF0\x9F\x98\x80", at) == 0x1F600);
  std::string text;
  for (const char32_t c : {U'a', U'é', U'€', U'\U0001F600'}) append_utf8(text, c);
  CHECK(text == "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
}

TEST_CASE("a corpus is the same on any number of threads, from text files and from JSON lines, and marks where documents begin") {
  const TemporaryDirectory dir;
  const auto t = load_tokenizer(data_path("bpe-tiny"));
  {
    std::ofstream lines(dir / "d.jsonl");
    for (int i = 0; i < 300; ++i) lines << Json{{"body", "document " + std::to_string(i)}, {"n", i}}.dump() << "\n" << (i % 7 ? "" : "\n");
  }
  CHECK(error_of([&] { write_corpus({.inputs = {dir / "d.jsonl"}, .output = dir / "none"}, *t); }).find("d.jsonl:1: expected an object with a text \"text\"; it has \"body\"") !=
        std::string::npos);
  std::ofstream(dir / "same.txt") << [] {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "document " + std::to_string(i) + "\n";
    return text;
  }();
  train_tokenizer({dir / "d.jsonl"}, 290, dir / "lines.model", "body");
  train_tokenizer({dir / "same.txt"}, 290, dir / "text.model");
  CHECK(read_text_file(dir / "lines.model") == read_text_file(dir / "text.model"));
  std::string first;
  for (const int threads : {1, 4}) {
    const std::string out = dir / ("out" + std::to_string(threads));
    const CorpusSummary s = write_corpus({.inputs = {dir / "d.jsonl"}, .output = out, .field = "body", .validation_fraction = 0.2, .form = ShardForm::kLlmq,
                                          .mask_boundaries = true, .threads = threads}, *t);
    CHECK(s.documents + s.validation_documents == 300);
    CHECK(s.validation_documents > 30);
    CHECK(s.validation_documents < 90);
    const std::string bytes = read_text_file(out + "/train_000000.bin");
    if (threads == 1) first = bytes;
    CHECK(bytes == first);
    const TokenShard shard(out + "/train_000000.bin");
    REQUIRE(shard.has_mask());
    Ids ids(static_cast<std::size_t>(shard.tokens()));
    shard.read(0, shard.tokens(), 1000, ids.data());
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) wrong += shard.trained(static_cast<std::int64_t>(i)) == (ids[i] == 998);
    CHECK(wrong == 0);
  }
  std::ofstream(dir / "bad.txt") << "ok\xFF";
  CHECK(error_of([&] { write_corpus({.inputs = {dir / "bad.txt"}, .output = dir / "bad"}, *t); }).find("bad.txt: the text is not UTF-8: byte 2") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "bad/train_000000.bin"));
}
