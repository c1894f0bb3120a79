// Perplexity: the three definitions against figures computed with transformers, and what must hold of any.
#include <cmath>

#include "cli.h"
#include "relume/train/perplexity.h"

using namespace relume;
using namespace relume::test;
using Json = nlohmann::json;

namespace {

TokenSequence counting(std::int64_t n) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  return std::make_shared<const std::vector<std::int32_t>>(tokens);
}

/// Every target of some windows, in order. Tokens count up, so a target says where it stood.
std::vector<std::int32_t> targets_of(const ScoringWindows& w) {
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(w.length)), targets(inputs.size()), all;
  std::int64_t windows = 0;
  for (NextWindow next = w.next; next(inputs.data(), targets.data()); ++windows)
    for (std::size_t t = 0; t < targets.size(); ++t)
      if (targets[t] >= 0) {
        CHECK(targets[t] == inputs[t] + 1);
        all.push_back(targets[t]);
      }
  CHECK(windows == w.count);
  return all;
}

}  // namespace

TEST_CASE("every perplexity of the fixture is that of the reference") {
  const TemporaryDirectory dir;
  const auto expected = Json::parse(read_text_file(data_path("perplexity.json")))["results"];
  for (const auto& [name, options] : {std::pair{"hf-128-64", "--mode hf --stride 64"}, {"hf-128-128", "--mode hf --stride 128"}, {"llamacpp-128-bos1", "--mode llamacpp --bos 1"},
                                      {"llamacpp-128-nobos", "--mode llamacpp"}, {"shard-128", ""}, {"llamacpp-stride-128-64", "--mode llamacpp --stride 64"}}) {
    const Result r = relume_cli(fmt::format("eval {} --data {} --context 128 {} --json", data_path("hf-llama-tiny"), data_path("perplexity-tokens.bin"), options), dir);
    INFO(name << ": " << r.err);
    REQUIRE(r.code == 0);
    const Json found = r.json(), wanted = expected[name];
    for (const char* exact : {"windows", "tokens_scored"}) CHECK(found[exact] == wanted[exact]);
    for (const char* near : {"nll", "mean_nll", "perplexity", "stderr"}) CHECK(found[near].get<double>() == Approx(wanted[near].get<double>()).epsilon(1e-6));
  }
}

TEST_CASE("hf windows score every token once for any stride, and disjoint blocks where the stride is the context") {
  for (const std::int64_t n : {2, 7, 16, 17, 50, 64, 65})
    for (const std::int64_t stride : {1, 3, 8, 15}) {
      std::vector<std::int32_t> wanted;
      for (std::int32_t t = 1; t < n; ++t) wanted.push_back(t);
      CHECK(targets_of(hf_windows(counting(n), 16, stride)) == wanted);
    }
  for (const std::int64_t n : {16, 17, 33, 40}) {
    std::vector<std::int32_t> wanted;
    for (std::int32_t t = 1; t < n; ++t)
      if (t % 16 != 0) wanted.push_back(t);
    CHECK(targets_of(hf_windows(counting(n), 16, 16)) == wanted);
  }
}

TEST_CASE("shard and llama.cpp windows score what their definitions say") {
  CHECK(targets_of(shard_windows(counting(12), 5)) == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(targets_of(llamacpp_windows(counting(23), 8, -1)) == std::vector<std::int32_t>{5, 6, 7, 13, 14, 15});
  CHECK(targets_of(llamacpp_windows(counting(15), 7, -1)) == std::vector<std::int32_t>{4, 5, 6, 11, 12, 13});
  CHECK(targets_of(llamacpp_stride_windows(counting(16), 8, 4)) == std::vector<std::int32_t>{6, 7, 8, 9, 10, 11, 12, 13});
  std::vector<std::int32_t> inputs(8), targets(8);
  CHECK(llamacpp_windows(counting(16), 8, 99).next(inputs.data(), targets.data()));
  CHECK(inputs[0] == 99);
  CHECK(targets[7] == -100);  // a token of the next chunk
  CHECK(error_of([] { (void)llamacpp_windows(counting(15), 8, -1); }).find("15 tokens; llama.cpp's perplexity (two chunks) needs at least 16") != std::string::npos);
  CHECK(error_of([] { (void)shard_windows(counting(8), 8); }).find("8 tokens") != std::string::npos);
  CHECK(count_words(" two\twords\n\n") == 4);  // as Python's re.split counts, with empty ends
  CHECK(count_words("a\xC2\xA0z") == 2);
}

TEST_CASE("the batch changes nothing, a block of one token is no NaN, and several models make a table") {
  const TemporaryDirectory dir;
  TokenShardWriter w(dir / "t.bin", 512);
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 65; ++i) tokens.push_back(i * 37 % 512);
  w.append(tokens);
  w.close();
  const std::string common = fmt::format("eval {} --data t.bin --context 16 --json ", data_path("hf-llama-tiny"));
  const Json five = relume_cli(common + "--mode hf --stride 16 --batch-size 5", dir).json(), one = relume_cli(common + "--mode hf --stride 16 --batch-size 1", dir).json();
  CHECK(five["windows"] == 5);
  CHECK(five["tokens_scored"] == 60);
  CHECK(std::isfinite(five["perplexity"].get<double>()));
  CHECK(five["nll"].get<double>() == Approx(one["nll"].get<double>()).epsilon(1e-6));
  const std::string both = fmt::format("eval {0} {0} --data t.bin --context 16 ", data_path("hf-llama-tiny"));
  CHECK(relume_cli(both + "--json", dir).json()["results"].size() == 2);
  CHECK(contains(relume_cli(both, dir).out, "+0.00%"));
  CHECK(contains(relume_cli(common + "--stride 8", dir).err, "mode shard has disjoint windows"));
  CHECK(contains(relume_cli(common + "--mode hf --stride 17", dir).err, "larger than the context"));
  CHECK(contains(relume_cli(common + "--bos 3", dir).err, "only auto applies"));
  CHECK(contains(relume_cli(fmt::format("eval {} --data t.bin --context 256 --mode llamacpp --stride 4 --json", data_path("hf-llama-tiny")), dir).err, "at least 259"));
}

TEST_CASE("a text is scored with the model's own tokenizer, to the last token") {
  const TemporaryDirectory dir;
  // A model that fits the tokenizer: the fixture's tokenizer has 800 entries.
  std::ofstream(dir / "c.json") << fmt::format(R"({{
    "model": {{"vocab_size": 800, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}},
    "data": {{"train": "t_*.bin", "tokenizer": "{}", "sequence_length": 8}}, "batch": {{"micro_batch_size": 1}},
    "schedule": {{"steps": 1}}, "output": "run"}})", data_path("spm-tiny/tokenizer.model"));
  TokenShardWriter w(dir / "t_0.bin", 800);
  w.append(std::vector<std::int32_t>(40, 7));
  w.close();
  REQUIRE(relume_cli("train c.json --json", dir).code == 0);
  std::ofstream(dir / "text.txt") << "The licence is here, and then some more words.\n";
  const Result r = relume_cli("eval run/checkpoints/step-00000001 --text text.txt --context 8 --json", dir);
  INFO(r.err);
  REQUIRE(r.code == 0);
  const auto ids = relume_cli("tokenize encode --tokenizer " + data_path("spm-tiny/tokenizer.model") + " --in text.txt --bos --json", dir).json()["ids"];
  CHECK(r.json()["tokens_scored"] == ids.size() - 1);
  CHECK(r.json()["bits_per_byte"].get<double>() == Approx(r.json()["nll"].get<double>() / (47 * std::log(2.0))));
  CHECK(r.json()["word_perplexity"].get<double>() == Approx(std::exp(r.json()["nll"].get<double>() / 10)));
  CHECK(contains(r.json()["bos"].get<std::string>(), "1 before the text"));
  const std::string common = "eval run/checkpoints/step-00000001 --text text.txt --context 8 --json ";
  const auto with = relume_cli(common + "--mode llamacpp", dir).json(), without = relume_cli(common + "--mode llamacpp --bos none", dir).json();
  CHECK(with["bos"] == "1 instead of the first token of every chunk");  // the tokenizer adds one
  CHECK(with["nll"] != without["nll"]);
  CHECK_FALSE(with.contains("bits_per_byte"));  // half of the text was not scored
  CHECK(contains(relume_cli(common + "--mode llamacpp --bos 900", dir).err, "token id below 800"));
}
