// Generation, and models on their way in and out: what transformers makes of the same weights, and files that come back as they went.
#include <cmath>

#include "cli.h"
#include "relume/io/hf_directory.h"
#include "relume/io/tokenizer.h"
#include "relume/train/checkpoint.h"
#include "relume/train/generation.h"

using namespace relume;
using namespace relume::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

namespace {

/// The tiny fixture, ready to generate.
struct TinyGenerator {
  explicit TinyGenerator(const GenerationShape& shape, std::unique_ptr<Backend> b = make_cpu_backend())
      : backend(std::move(b)), memory(*backend), generator(model, layout, shape, "fp32", memory) {
    memory.allocate();
    load_weights(data_path("hf-llama-tiny"), layout, memory);
  }
  ModelConfig model = read_hf_config(data_path("hf-llama-tiny"));
  ParameterLayout layout = make_parameter_layout(model);
  std::unique_ptr<Backend> backend;
  Memory memory;
  Generator generator;
};

Ids golden(const char* name) {
  const SafetensorsFile f(data_path("hf-llama-tiny/golden.safetensors"));
  Ids ids(static_cast<std::size_t>(f.entries().at(name).elements()));
  f.copy(name, "I32", static_cast<std::int64_t>(ids.size()), ids.data());
  return ids;
}

std::string joined(const Ids& ids) { return fmt::format("{}", fmt::join(ids, ",")); }

}  // namespace

TEST_CASE("greedy output is that of transformers, however the prompt is cut") {
  const Ids prompt = golden("greedy_prompt"), whole = golden("greedy_output");
  const Ids expected(whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()), whole.end());
  for (const std::int64_t part : {1, 4, 11, 64}) {
    TinyGenerator t({.context = 44, .part = part});
    for (int again = 0; again < 2; ++again) {  // what a sequence left in the caches is no part of the next
      t.generator.restart();
      CHECK(generate(t.generator, prompt, {.max_tokens = 32, .sampling = {.temperature = 0}}) == expected);
    }
    t.generator.restart();
    CHECK(generate(t.generator, prompt, {.max_tokens = 100, .sampling = {.temperature = 0}}).size() == 33);  // the context is full
    CHECK(error_of([&] { (void)t.generator.read(prompt); }).find("the context holds 44") != std::string::npos);
  }
  if (cuda_devices() > 0) {
    TinyGenerator t({.context = 44, .part = 8}, make_cuda_backend());
    CHECK(generate(t.generator, prompt, {.max_tokens = 32, .sampling = {.temperature = 0}}) == expected);
  }
  const TemporaryDirectory dir;
  const Result r = relume_cli(fmt::format("generate {} --ids {} --max-tokens 32 --temperature 0 --precision fp32 --ignore-eos --json", data_path("hf-llama-tiny"), joined(prompt)), dir);
  REQUIRE(r.code == 0);
  CHECK(r.json()["tokens"].get<Ids>() == expected);
  CHECK(r.json()["finish_reason"] == "length");
  const Result stopped = relume_cli(fmt::format("generate {} --ids {} --max-tokens 32 --temperature 0 --precision fp32 --stop {} --json", data_path("hf-llama-tiny"),
                                                joined(prompt), expected[5]), dir);
  CHECK(stopped.json()["tokens"].get<Ids>() == Ids(expected.begin(), std::find(expected.begin(), expected.end(), expected[5])));
  CHECK(stopped.json()["finish_reason"] == "stop");
}

TEST_CASE("tokens are drawn from the softmax, cut to the most likely, and the same for the same seed") {
  const std::vector<float> logits{1.f, 3.f, -2.f, 3.f, 0.5f, 2.f};
  CHECK(sample_token(logits, {.temperature = 0}, 0) == 1);  // the lower of two equals
  CHECK(sample_token(logits, {.top_k = 1}, 7) == 1);
  const auto frequencies = [&](const SamplingOptions& o) {
    std::vector<double> f(logits.size());
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) f[static_cast<std::size_t>(sample_token(logits, o, i))] += 1.0 / kDraws;
    return f;
  };
  const auto expected = [&](double temperature, const std::vector<int>& allowed) {
    std::vector<double> p(logits.size());
    double sum = 0;
    for (int i : allowed) sum += p[static_cast<std::size_t>(i)] = std::exp(static_cast<double>(logits[static_cast<std::size_t>(i)]) / temperature);
    for (double& x : p) x /= sum;
    return p;
  };
  const auto near = [](const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      CHECK(std::abs(a[i] - b[i]) < 0.012);  // five standard deviations of 40,000 draws
      if (b[i] == 0) CHECK(a[i] == 0);
    }
  };
  near(frequencies({}), expected(1, {0, 1, 2, 3, 4, 5}));
  near(frequencies({.temperature = 2}), expected(2, {0, 1, 2, 3, 4, 5}));
  near(frequencies({.top_k = 3}), expected(1, {1, 3, 5}));
  near(frequencies({.top_p = 0.5}), expected(1, {1, 3}));       // 0.38, 0.76 of all
  near(frequencies({.top_k = 3, .top_p = 0.3}), expected(1, {1}));
  CHECK(frequencies({.seed = 1}) == frequencies({.seed = 1}));
  CHECK(frequencies({.seed = 1}) != frequencies({.seed = 2}));
  CHECK(error_of([] { (void)sample_token(std::vector<float>{0.f, std::nanf("")}, {}, 0); }).find("not a number") != std::string::npos);
}

TEST_CASE("a model comes back from a conversion bit by bit, in either dtype, with its tokenizer and special tokens") {
  const TemporaryDirectory dir;
  const auto same = [&](const std::string& a, const std::string& b, std::string_view dtype) {
    const ModelConfig m = read_hf_config(a), n = read_hf_config(b);
    const ParameterLayout layout = make_parameter_layout(m);
    const HfWeights x(a, layout), y(b, make_parameter_layout(n));
    CHECK(y.lossless_dtype() == dtype);
    for (const Parameter& p : layout.parameters) {
      std::vector<float> v(static_cast<std::size_t>(p.shape.elements())), w(v.size());
      x.read(p, v.data());
      y.read(p, w.data());
      CHECK(std::memcmp(v.data(), w.data(), v.size() * 4) == 0);
    }
    CHECK(n.rope_scaling == m.rope_scaling);
    CHECK(n.head_size() == m.head_size());
  };
  const auto convert = [&](const std::string& arguments) {
    const Result r = relume_cli("convert " + arguments, dir);
    INFO(r.err);
    REQUIRE(r.code == 0);
  };
  convert(data_path("hf-llama-tiny") + " a");
  same(data_path("hf-llama-tiny"), dir / "a", "F32");
  convert(data_path("hf-llama-rope3") + " b");
  same(data_path("hf-llama-rope3"), dir / "b", "BF16");
  CHECK(Json::parse(read_text_file(dir / "b/config.json"))["dtype"] == "bfloat16");
  convert("b c --dtype fp32");
  convert("c d --dtype bf16");
  same(dir / "b", dir / "d", "BF16");
  CHECK(read_text_file(dir / "b/model.safetensors") == read_text_file(dir / "d/model.safetensors"));
  CHECK(SafetensorsFile(dir / "b/model.safetensors").metadata().at("format") == "pt");
  // Rounding is to nearest even, as everybody does it.
  convert("a e --dtype bf16");
  const SafetensorsFile f32(dir / "a/model.safetensors"), bf16(dir / "e/model.safetensors");
  const auto* wide = reinterpret_cast<const std::uint32_t*>(f32.bytes("model.norm.weight").data());
  const auto* narrow = reinterpret_cast<const std::uint16_t*>(bf16.bytes("model.norm.weight").data());
  for (int i = 0; i < 64; ++i) CHECK(narrow[i] == static_cast<std::uint16_t>((wide[i] + 0x7FFF + (wide[i] >> 16 & 1)) >> 16));

  fs::copy(dir / "a", dir / "f");
  {
    fs::copy(data_path("bpe-tiny/tokenizer.json"), dir / "f/tokenizer.json");
    CHECK(contains(relume_cli("convert f g", dir).err, "1000 entries, more than the model's vocab_size 512"));
    fs::remove(dir / "f/tokenizer.json");
  }
  Json config = Json::parse(read_text_file(dir / "f/config.json"));
  config["eos_token_id"] = {7, 9};
  std::ofstream(dir / "f/config.json") << config.dump();
  convert("f g");
  CHECK(Json::parse(read_text_file(dir / "g/config.json"))["eos_token_id"] == Json{7, 9});
  CHECK(contains(relume_cli("convert f g", dir).err, "nothing is overwritten"));
  CHECK(contains(relume_cli("convert nowhere h", dir).err, "nowhere/config.json"));
  CHECK_FALSE(fs::exists(dir / "h"));
}

TEST_CASE("text is streamed in whole characters and is that of the tokens") {
  const TemporaryDirectory dir;
  fs::copy(data_path("hf-llama-tiny"), dir / "m");
  Json config = Json::parse(read_text_file(dir / "m/config.json"));
  config["vocab_size"] = 1000;
  std::ofstream(dir / "m/config.json") << config.dump();
  // A model with the tokenizer's vocabulary: one step of training makes one.
  std::ofstream(dir / "c.json") << fmt::format(R"({{"model": {{"vocab_size": 1000, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}},
    "data": {{"train": "t.bin", "validation": "t.bin", "tokenizer": "{}", "sequence_length": 8}}, "batch": {{"micro_batch_size": 1}},
    "evaluation": {{"samples": 2}}, "schedule": {{"steps": 1}}, "output": "run"}})", data_path("bpe-tiny/tokenizer.json"));
  TokenShardWriter w(dir / "t.bin", 1000);
  w.append(Ids(40, 70));
  w.close();
  const Result trained = relume_cli("train c.json --json", dir);
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.json()["arena_bytes"] == trained.json()["touched_bytes"]);
  const std::string samples = read_text_file(dir / "run/samples.jsonl");
  CHECK(std::count(samples.begin(), samples.end(), '\n') == 2);
  CHECK(contains(samples, "\"text\""));
  const std::string model = "run/checkpoints/step-00000001";
  CHECK(fs::exists(dir / (model + "/tokenizer.json")));
  CHECK(Json::parse(read_text_file(dir / (model + "/config.json")))["eos_token_id"] == 999);
  REQUIRE(relume_cli("convert " + model + " plain", dir).code == 0);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(read_text_file(dir / (std::string("plain/") + name)) == read_text_file(data_path(std::string("bpe-tiny/") + name)));
  const std::string common = "generate " + model + " --prompt 'a b' --max-tokens 60 --seed ";
  const Result json = relume_cli(common + "3 --json", dir), plain = relume_cli(common + "3", dir);
  REQUIRE(json.code == 0);
  const auto tokenizer = load_tokenizer(data_path("bpe-tiny"));
  CHECK(json.json()["prompt_tokens"][0] == 998);
  CHECK(json.json()["text"] == tokenizer->decode(json.json()["tokens"].get<Ids>()));
  CHECK(plain.out == "a b" + json.json()["text"].get<std::string>() + "\n");
  CHECK(contains(plain.err, "ended by"));
  CHECK(relume_cli(common + "4 --json", dir).json()["tokens"] != json.json()["tokens"]);
  CHECK(contains(relume_cli("generate " + model + " --ids 1,2000", dir).err, "token 2000 of the prompt"));
  CHECK(contains(relume_cli("generate " + model, dir).err, "give one of --prompt"));
  CHECK(contains(relume_cli("generate run --prompt x", dir).err, "is a run, not a model; hint: its models are in run/checkpoints"));
  CHECK(contains(relume_cli("generate " + data_path("hf-llama-tiny") + " --prompt x", dir).err, "has no tokenizer"));
  // Fine-tuning from it: the tokenizer and the model must be its own.
  const auto start = [&](const std::string& more) { return relume_cli("train c.json --set output=run2 --set init=" + model + " " + more, dir); };
  CHECK(contains(start("--set model.rope_theta=500000").err, "init: " + model + "/config.json is another model than the config's"));
  CHECK(contains(start("--set data.tokenizer=" + data_path("spm-tiny/tokenizer.model")).err, "which belongs to the weights of init"));
  CHECK(contains(start("--set model.vocab_size=900 --set 'data.tokenizer=\"\"'").err, "more than model.vocab_size 900"));
  CHECK(start("--set 'data.tokenizer=\"\"'").code == 0);  // the one of the weights is taken
  CHECK(fs::exists(dir / "run2/checkpoints/step-00000001/tokenizer.json"));
}
