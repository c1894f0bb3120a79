// Files: safetensors, token shards, the data loader, Hugging Face directories, atomic writes.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "files.h"
#include "relume/io/corpus.h"
#include "relume/io/hf_directory.h"
#include "relume/io/tokenizer.h"
#include "relume/train/data_loader.h"
#include "support.h"

using namespace relume;
using namespace relume::test;
namespace fs = std::filesystem;

TEST_CASE("safetensors headers are accepted and refused as the reference library does") {
  const auto expected = nlohmann::json::parse(read_text_file(data_path("safetensors-broken/expected.json")));
  int accepted = 0, refused = 0;
  for (const auto& entry : fs::directory_iterator(data_path("safetensors-broken"))) {
    const std::string name = entry.path().filename().string();
    if (name == "expected.json") continue;
    INFO(name);
    const bool ok = expected.at(entry.path().stem().string()).at("reference") == "accepts";
    if (ok) {
      CHECK_NOTHROW(SafetensorsFile(entry.path().string()));
      ++accepted;
    } else {
      CHECK(error_of([&] { SafetensorsFile(entry.path().string()); }).find(name) != std::string::npos);
      ++refused;
    }
  }
  CHECK(accepted == 4);
  CHECK(refused == 30);
}

TEST_CASE("what is written as safetensors is read back, and has the format key") {
  const TemporaryDirectory dir;
  const std::vector<float> a{1, 2, 3, 4, 5, 6}, scalar{7};
  write_safetensors(dir / "x.safetensors", {{"a", "F32", {2, 3}, [&] { return std::as_bytes(std::span(a)); }},
                                            {"s", "F32", {}, [&] { return std::as_bytes(std::span(scalar)); }}});
  const SafetensorsFile f(dir / "x.safetensors");
  CHECK(read_f32(f, "a") == a);
  CHECK(read_f32(f, "s") == scalar);
  CHECK(f.metadata().at("format") == "pt");
  CHECK(error_of([&] { read_i32(f, "a"); }).find("expected dtype I32, found F32") != std::string::npos);
}

TEST_CASE("token shards of llm.c, llmq and nanoGPT are read, others and broken ones refused with what they are") {
  const auto expected = nlohmann::json::parse(read_text_file(data_path("shards/expected.json")));
  const auto form_of = [](const std::string& name) { return name.starts_with("nanogpt") ? std::optional(ShardForm::kRawU16) : std::nullopt; };
  for (const auto& [name, facts] : expected["good"].items()) {
    INFO(name);
    const TokenShard s(data_path("shards/" + name), form_of(name));
    CHECK(s.tokens() == expected["tokens"]);
    CHECK(to_string(s.form()) == facts["format"]);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(s.tokens()));
    s.read(0, s.tokens(), 512, tokens.data());
    CHECK(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}) == expected["sum"]);
    CHECK(std::vector<std::int32_t>(tokens.begin(), tokens.begin() + 16) == expected["first"].get<std::vector<std::int32_t>>());
    CHECK(std::vector<std::int32_t>(tokens.end() - 16, tokens.end()) == expected["last"].get<std::vector<std::int32_t>>());
    CHECK(s.has_mask() == (name == "llmq-mask.bin"));
    if (!s.has_mask()) continue;
    std::vector<int> mask;
    for (std::int64_t i = 0; i < s.tokens(); ++i) mask.push_back(s.trained(i));
    CHECK(std::accumulate(mask.begin(), mask.end(), 0) == expected["mask_ones"]);
    CHECK(std::vector<int>(mask.begin(), mask.begin() + 24) == expected["mask_first"].get<std::vector<int>>());
  }
  for (const auto& entry : fs::directory_iterator(data_path("shards/broken"))) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    const std::string message = error_of([&] {
      const TokenShard s(entry.path().string(), form_of(name));
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(s.tokens()));
      s.read(0, s.tokens(), 512, tokens.data());
    });
    CHECK(message.find(name) != std::string::npos);
  }
  const auto message_of = [](const char* name) { return error_of([&] { TokenShard{data_path(name)}; }); };
  CHECK(message_of("shards/broken/llmc-model.bin").find("looks like an llm.c model") != std::string::npos);
  CHECK(message_of("shards/broken/big-endian.bin").find("bytes swapped") != std::string::npos);
  CHECK(message_of("shards/broken/u32-as-u16.bin").find("look 4 bytes wide") != std::string::npos);
  CHECK(message_of("shards/nanogpt.bin").find("form raw-u16") != std::string::npos);
  CHECK(error_of([] { TokenShard(data_path("shards/llmq.bin"), ShardForm::kLlmcGpt2); }).find("expected a token shard of the form llmc-gpt2, found llmq") != std::string::npos);
  CHECK(error_of([] { (void)parse_shard_form("gpt2"); }).find("llmc-gpt2") != std::string::npos);
}

TEST_CASE("shards are written byte for byte as the tools they belong to write them") {
  const TemporaryDirectory dir;
  for (const char* name : {"llmc-gpt2.bin", "llmc-llama3.bin", "nanogpt.bin", "llmq.bin", "llmq-mask.bin"}) {
    INFO(name);
    const bool raw = std::string(name) == "nanogpt.bin";
    const TokenShard in(data_path(std::string("shards/") + name), raw ? std::optional(ShardForm::kRawU16) : std::nullopt);
    TokenShardWriter out(dir / name, 512, in.form(), in.has_mask());
    std::vector<std::int32_t> tokens(1000);
    for (std::int64_t at = 0; at < in.tokens(); at += 1000) {  // parts whose masks do not end at a byte
      const std::int64_t n = std::min<std::int64_t>(1000, in.tokens() - at);
      in.read(at, n, 512, tokens.data());
      std::vector<bool> trained;
      for (std::int64_t i = 0; i < n; ++i) trained.push_back(in.trained(at + i));
      out.append(std::span(tokens).first(static_cast<std::size_t>(n)), trained);
    }
    out.close();
    CHECK(read_text_file(dir / name) == read_text_file(data_path(std::string("shards/") + name)));
  }
  CHECK(error_of([&] { TokenShardWriter(dir / "x", 70000, ShardForm::kRawU16); }).find("hint: llmc-llama3 or llmq") != std::string::npos);
  CHECK(error_of([&] { TokenShardWriter(dir / "x", 700, ShardForm::kLlmcGpt2, true); }).find("has no place for a loss mask") != std::string::npos);
  { TokenShardWriter abandoned(dir / "x", 700); }
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 5);  // nothing half-written stays
}

TEST_CASE("targets that a loss mask leaves out are not scored") {
  DataLoader data(data_path("shards/llmq-mask.bin"), {.length = 16, .vocab_size = 512});
  const TokenShard shard(data_path("shards/llmq-mask.bin"));
  std::vector<std::int32_t> tokens(16), targets(16), all(33);
  shard.read(0, 33, 512, all.data());
  for (std::size_t w = 0; w < 2; ++w) {
    data.next(tokens.data(), targets.data());
    for (std::size_t i = 0; i < 16; ++i) {
      const std::size_t at = 16 * w + i;
      CHECK(tokens[i] == all[at]);
      CHECK(targets[i] == (shard.trained(static_cast<std::int64_t>(at) + 1) ? all[at + 1] : -100));
    }
  }
}

TEST_CASE("the token width follows the vocabulary: 65,536 entries still fit two bytes") {
  const TemporaryDirectory dir;
  for (const auto& [vocabulary, width] : {std::pair{65536, 2}, std::pair{65537, 4}}) {
    TokenShardWriter w(dir / "s.bin", vocabulary);
    w.append(std::vector<std::int32_t>{1, vocabulary - 1, 3});
    CHECK_FALSE(fs::exists(dir / "s.bin"));  // not before it is whole
    w.close();
    const TokenShard s(dir / "s.bin");
    CHECK(s.token_bytes() == width);
    std::int32_t tokens[3];
    s.read(0, 3, vocabulary, tokens);
    CHECK(tokens[1] == vocabulary - 1);
    fs::remove(dir / "s.bin");
  }
}

TEST_CASE("a shard of more than 2^31 bytes is addressed in 64 bits") {
  const TemporaryDirectory dir;
  const std::int64_t tokens = (std::int64_t{1} << 30) + 100;  // 2 GiB and a little; a sparse file takes no room
  {
    std::ofstream f(dir / "big.bin", std::ios::binary);
    const std::int32_t header[3] = {20240520, 1, static_cast<std::int32_t>(tokens)};
    f.write(reinterpret_cast<const char*>(header), sizeof header);
    f.seekp(1024 + 2 * (tokens - 1));
    const std::uint16_t last = 77;
    f.write(reinterpret_cast<const char*>(&last), 2);
  }
  const TokenShard s(dir / "big.bin");
  std::int32_t end[2];
  s.read(tokens - 2, 2, 100, end);
  CHECK(end[0] == 0);
  CHECK(end[1] == 77);
}

TEST_CASE("a shard that shrinks while it is read ends in an error") {
  const TemporaryDirectory dir;
  fs::copy_file(data_path("shards/llmc-gpt2.bin"), dir / "s.bin");
  const TokenShard s(dir / "s.bin");
  fs::resize_file(dir / "s.bin", 2000);
  std::int32_t tokens[8];
  CHECK(error_of([&] { s.read(4000, 8, 512, tokens); }).find("had 9222 bytes when it was opened, now has 2000") != std::string::npos);
}

namespace {

/// Shards of given lengths in `dir`; tokens count up over all of them.
void write_counting_shards(const TemporaryDirectory& dir, const std::vector<std::int64_t>& lengths) {
  std::int32_t next = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    TokenShardWriter w(dir / ("train_" + std::to_string(i) + ".bin"), 60000);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(lengths[i]));
    for (auto& t : tokens) t = next++;
    w.append(tokens);
    w.close();
  }
}

std::vector<std::int32_t> first_tokens(DataLoader& loader, int windows) {
  std::vector<std::int32_t> tokens(10), targets(10), first;
  for (int i = 0; i < windows; ++i) {
    loader.next(tokens.data(), targets.data());
    for (std::size_t t = 0; t < 10; ++t) REQUIRE(targets[t] == tokens[t] + 1);
    first.push_back(tokens[0]);
  }
  return first;
}

}  // namespace

TEST_CASE("without shuffling windows come in file order and never cross a file") {
  const TemporaryDirectory dir;
  write_counting_shards(dir, {35, 8, 21});  // 3, 0 and 2 windows of 10
  DataLoader loader(dir / "train_*.bin", {10, 60000});
  CHECK(loader.windows() == 5);
  CHECK(loader.tokens() == 64);
  CHECK(first_tokens(loader, 7) == std::vector<std::int32_t>{0, 10, 20, 43, 53, 0, 10});
}

TEST_CASE("shuffled epochs hold every window once, in an order of their own") {
  const TemporaryDirectory dir;
  write_counting_shards(dir, {201, 155, 301});
  DataLoader loader(dir / "train_*.bin", {10, 60000, true, 3});
  const int windows = static_cast<int>(loader.windows());
  CHECK(windows == 20 + 15 + 30);
  const auto first = first_tokens(loader, windows), second = first_tokens(loader, windows);
  CHECK(std::set<std::int32_t>(first.begin(), first.end()).size() == static_cast<std::size_t>(windows));
  CHECK(std::set<std::int32_t>(first.begin(), first.end()) == std::set<std::int32_t>(second.begin(), second.end()));
  CHECK(first != second);
  DataLoader other_seed(dir / "train_*.bin", {10, 60000, true, 4});
  CHECK(first_tokens(other_seed, windows) != first);

  DataLoader whole(dir / "train_*.bin", {10, 60000, true, 3});  // resumed in file 3 of epoch 2
  first_tokens(whole, windows + 17);
  const std::int64_t position = whole.position();
  const auto rest = first_tokens(whole, 60);
  DataLoader resumed(dir / "train_*.bin", {10, 60000, true, 3});
  resumed.seek(position);
  CHECK(first_tokens(resumed, 60) == rest);
}

TEST_CASE("data that cannot give a window is refused with the file and the numbers") {
  const TemporaryDirectory dir;
  write_counting_shards(dir, {9});
  CHECK(error_of([&] { DataLoader(dir / "train_*.bin", {10, 60000}); }).find("9 tokens; a window of sequence_length 10 needs 11") != std::string::npos);
  CHECK(error_of([&] { DataLoader(dir / "none_*.bin", {10, 60000}); }).find("no file matches") != std::string::npos);
  DataLoader loader(dir / "train_0.bin", {4, 6});
  std::int32_t tokens[4], targets[4];
  loader.next(tokens, targets);
  const std::string message = error_of([&] { loader.next(tokens, targets); });
  CHECK(message.find("train_0.bin") != std::string::npos);
  CHECK(message.find("token 6 at position 6 is not below the vocabulary size 6") != std::string::npos);
}

TEST_CASE("a corpus is split by document, with BOS before each, and nothing is overwritten") {
  const TemporaryDirectory dir;
  fs::create_directories(dir / "text/sub");
  std::string all;
  for (int i = 0; i < 12; ++i) {
    const std::string text = "document number " + std::to_string(i) + ": the quick brown fox jumps over the lazy dog.\nAnd again, " + std::to_string(i * i) + ".\n";
    std::ofstream(dir / ("text/" + std::string(i % 2 ? "sub/" : "") + "d" + std::to_string(i) + ".txt")) << text;
    all += text;
  }
  train_tokenizer(find_text_files({dir / "text"}), 330, dir / "t.model");
  train_tokenizer(find_text_files({dir / "text"}), 330, dir / "t2.model");
  CHECK(hash_file(dir / "t.model") == hash_file(dir / "t2.model"));
  const auto tokenizer = load_tokenizer(dir / "t.model");
  CHECK(tokenizer->decode(tokenizer->encode("fox ∂ 7\n")) == "fox ∂ 7\n");  // bytes fall back
  const CorpusSummary s = write_corpus({.inputs = {dir / "text"}, .output = dir / "out", .validation_fraction = 0.2, .tokens_per_shard = 200}, *tokenizer);
  CHECK(s.documents + s.validation_documents == 12);
  CHECK(s.validation_documents >= 2);
  CHECK(s.bytes == static_cast<std::int64_t>(all.size()));
  std::int64_t bos = 0, tokens = 0;
  for (const std::string& path : s.files) {
    const TokenShard shard(path);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.tokens()));
    shard.read(0, shard.tokens(), 330, ids.data());
    bos += std::count(ids.begin(), ids.end(), 1);
    tokens += shard.tokens();
    CHECK(shard.tokens() <= 200);
  }
  CHECK(bos == 12);
  CHECK(tokens == s.train_tokens + s.validation_tokens);
  CHECK(error_of([&] { write_corpus({.inputs = {dir / "text"}, .output = dir / "out"}, *tokenizer); }).find("nothing is overwritten") != std::string::npos);
  CHECK(error_of([&] { write_corpus({.inputs = {dir / "text/d0.txt"}, .output = dir / "out3", .validation_fraction = 0.1}, *tokenizer); })
            .find("there is only one") != std::string::npos);
  CHECK(error_of([&] { train_tokenizer({dir / "text/d0.txt"}, 30000, dir / "x.model"); }).find("hint: a smaller --vocab-size") != std::string::npos);
}

TEST_CASE("a Hugging Face directory that is not the model lists everything that differs") {
  const TemporaryDirectory dir;
  ModelConfig m = read_hf_config(data_path("hf-llama-tiny"));
  m.num_hidden_layers = 4;
  m.intermediate_size = 100;
  const std::string message = error_of([&] { HfWeights(data_path("hf-llama-tiny/model.safetensors"), make_parameter_layout(m)); });
  CHECK(message.find("missing    model.layers.3.mlp.down_proj.weight") != std::string::npos);
  CHECK(message.find("shape      model.layers.0.mlp.down_proj.weight: expected [64, 100], found [64, 160]") != std::string::npos);
  m = read_hf_config(data_path("hf-llama-tiny"));
  m.num_hidden_layers = 2;
  CHECK(error_of([&] { HfWeights(data_path("hf-llama-tiny/model.safetensors"), make_parameter_layout(m)); }).find("unexpected model.layers.2") !=
        std::string::npos);
}

TEST_CASE("shards whose index does not fit them are refused") {
  const TemporaryDirectory dir;
  const ModelConfig m = read_hf_config(data_path("hf-llama-rope3"));
  const auto index = nlohmann::json::parse(read_text_file(data_path("hf-llama-rope3/model.safetensors.index.json")));
  const auto refusal = [&](const auto& change) {
    fs::remove_all(dir / "m");
    fs::copy(data_path("hf-llama-rope3"), dir / "m");
    auto j = index;
    change(j["weight_map"]);
    std::ofstream(dir / "m/model.safetensors.index.json") << j.dump();
    return error_if_any([&] { HfWeights(dir / "m", make_parameter_layout(m)); });
  };
  const std::string first = index["weight_map"]["model.embed_tokens.weight"], other = index["weight_map"]["model.norm.weight"];
  CHECK(refusal([](auto&) {}).empty());
  CHECK(refusal([](auto& map) { map.erase("model.norm.weight"); }).find("does not say that 'model.norm.weight' is in") != std::string::npos);
  CHECK(refusal([&](auto& map) { map["model.norm.weight"] = first; }).find("which does not have it") != std::string::npos);
  CHECK(refusal([](auto& map) { map["more"] = "model-00001-of-00005.safetensors"; }).find("says that 'more' is in") != std::string::npos);
  CHECK(refusal([](auto& map) { map["model.norm.weight"] = "../x.safetensors"; }).find("is no plain file name") != std::string::npos);
  CHECK(refusal([](auto& map) { map["model.norm.weight"] = "absent.safetensors"; }).find("absent.safetensors") != std::string::npos);
  CHECK(refusal([](auto& map) { map["model.norm.weight"] = 3; }).find("expected a file name") != std::string::npos);
  CHECK(refusal([](auto&) {}).empty());
  fs::remove(dir / ("m/" + other));
  CHECK(error_of([&] { HfWeights(dir / "m", make_parameter_layout(m)); }).find(other) != std::string::npos);
}

TEST_CASE("a head beside a tied embedding is accepted if it is the same, and half-precision weights are widened exactly") {
  const TemporaryDirectory dir;
  ModelConfig m{.vocab_size = 3, .hidden_size = 2, .intermediate_size = 2, .num_hidden_layers = 1, .num_attention_heads = 1, .tie_word_embeddings = true};
  const ParameterLayout layout = make_parameter_layout(m);
  for (const bool same : {true, false}) {
    std::vector<SafetensorsTensor> tensors;
    static std::uint16_t values[64];
    const std::uint16_t bits[] = {0x0000, 0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8400};  // 0, 1, -2, 2^-24, 65504, -2^-14
    std::copy(std::begin(bits), std::end(bits), values);
    const auto data = [](std::int64_t n, int from) { return [n, from] { return std::as_bytes(std::span<const std::uint16_t>(values + from, static_cast<std::size_t>(n))); }; };
    for (const Parameter& p : layout.parameters)
      for (const HfPiece& piece : p.pieces) {
        const Shape s = p.hf_shape(piece);
        std::vector<std::int64_t> shape;
        for (int i = 0; i < s.rank(); ++i) shape.push_back(s[i]);
        tensors.push_back({piece.name, "F16", shape, data(s.elements(), 0)});
      }
    tensors.push_back({"lm_head.weight", "F16", {3, 2}, data(6, same ? 0 : 1)});
    write_safetensors(dir / "model.safetensors", tensors);
    const std::string message = error_if_any([&] {
      const HfWeights weights(dir.path(), layout);
      std::vector<float> embedding(6);
      weights.read(layout.find("embedding"), embedding.data());
      CHECK(embedding == std::vector<float>{0.f, 1.f, -2.f, std::ldexp(1.f, -24), 65504.f, -std::ldexp(1.f, -14)});
    });
    CHECK(message.empty() == same);
    if (!same) CHECK(message.find("tie_word_embeddings is true") != std::string::npos);
  }
}

TEST_CASE("scaled rotary frequencies are written in both spellings, and spellings that disagree are refused") {
  const TemporaryDirectory dir;
  const ModelConfig m = read_hf_config(data_path("hf-llama-rope3"));
  write_hf_config(dir.path(), m, {});
  const auto written = nlohmann::json::parse(read_text_file(dir / "config.json"));
  CHECK(written["rope_scaling"]["factor"] == 8);
  CHECK(written["rope_parameters"]["rope_theta"] == 10000);
  CHECK(written["original_max_position_embeddings"] == 32);
  CHECK(read_hf_config(dir.path()).rope_scaling == m.rope_scaling);
  const auto refusal = [&](const auto& change) {
    auto j = written;
    change(j);
    return error_if_any([&] { (void)parse_model_config(j.dump(), "config.json"); });
  };
  CHECK(refusal([](auto&) {}).empty());
  CHECK(refusal([](auto& j) { j["rope_scaling"]["factor"] = 4; }).find("differs from rope_parameters") != std::string::npos);
  CHECK(refusal([](auto& j) { j["rope_theta"] = 5e5; }).find("rope_theta") != std::string::npos);
  CHECK(refusal([](auto& j) { j["rope_parameters"].erase("low_freq_factor"); }).find("rope_parameters.low_freq_factor") != std::string::npos);
  CHECK(refusal([](auto& j) {
          j.erase("rope_scaling");
          j.erase("original_max_position_embeddings");
          j["rope_parameters"].erase("original_max_position_embeddings");
        }).find("programs assume different values") != std::string::npos);
}

TEST_CASE("config.json keys that change the arithmetic are refused by name") {
  const auto base = nlohmann::json::parse(read_text_file(data_path("hf-llama-tiny/config.json")));
  const auto message = [&](const char* key, const nlohmann::json& value) {
    auto j = base;
    j[key] = value;
    return error_of([&] { (void)parse_model_config(j.dump(), "config.json"); });
  };
  for (const auto& [key, value] : std::vector<std::pair<const char*, nlohmann::json>>{
           {"attention_bias", true}, {"mlp_bias", true}, {"hidden_act", "gelu"}, {"sliding_window", 4096}, {"model_type", "mistral"},
           {"architectures", {"MistralForCausalLM"}}, {"rope_scaling", {{"rope_type", "llama3"}}}, {"quantization_config", {{"bits", 4}}},
           {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}}, {"num_attention_heads", 5}, {"hidden_size", -1}, {"rope_theta", 5e5}}) {
    INFO(key);
    const std::string m = message(key, value);
    CHECK(m.find(std::string(key) == "hidden_size" ? "hidden_size" : std::string(key).substr(0, 8)) != std::string::npos);
    CHECK(m.find("config.json") != std::string::npos);
  }
}

TEST_CASE("files appear whole or not at all") {
  const TemporaryDirectory dir;
  write_file_atomically(dir / "a", "one");
  write_file_atomically(dir / "a", "two");
  CHECK(read_text_file(dir / "a") == "two");
  CHECK_THROWS(write_directory_atomically(dir / "d", [](const std::string&) { throw Error(ErrorCode::kRuntime, "no"); }));
  write_directory_atomically(dir / "d", [](const std::string& t) { write_file_atomically(t + "/x", "1"); });
  CHECK(error_of([&] { write_directory_atomically(dir / "d", [](const std::string&) {}); }).find("not overwritten") != std::string::npos);
  int entries = 0;
  for ([[maybe_unused]] const auto& e : fs::directory_iterator(dir.path())) ++entries;
  CHECK(entries == 2);  // nothing temporary is left
  CHECK(error_of([&] { make_writable_directory(dir / "a/b"); }).find("cannot be made a directory") != std::string::npos);
}
