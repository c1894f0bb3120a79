// The config: what is accepted, and what every mistake is answered with.
#include <nlohmann/json.hpp>

#include "files.h"
#include "support.h"

using namespace relume;
using namespace relume::test;

namespace {

const char* const kBase = R"({
  // a comment
  "model": {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
  "data": {"train": "x_*.bin", "sequence_length": 16},
  "batch": {"micro_batch_size": 2}
})";

Config parse(const std::vector<std::string>& overrides, const std::string& text = kBase) { return parse_config(text, "c.json", overrides); }

std::string refusal(const std::vector<std::string>& overrides, const std::string& text = kBase) {
  return error_of([&] { (void)parse(overrides, text); });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a config with comments and overrides is read, and written config reads back the same") {
  const Config c = parse({"schedule.steps=50", "output=runs/my run", "optimizer.betas=[0.8,0.9]", "remat.default.ffn=exact",
                          R"(remat.layers={"1-2":{"policy":"exact","keep":["qkv"]},"3":{"attention":{"policy":"sketch","fraction":0.5,"min_probability":0.25}}})"});
  CHECK(c.schedule.steps == 50);
  CHECK(c.output == "runs/my run");
  CHECK(c.optimizer.betas == std::vector<double>{0.8, 0.9});
  CHECK(c.remat.layer(0).attention.policy == "store");
  CHECK(c.remat.layer(0).ffn.policy == "exact");
  CHECK(c.remat.layer(1).attention.keep == std::vector<std::string>{"qkv"});
  CHECK_FALSE(c.remat.layer(2).keep_mid);
  CHECK(c.remat.layer(3).attention.policy == "sketch");
  CHECK(c.remat.layer(3).ffn.policy == "exact");  // what a layer does not name is inherited
  CHECK(c.model.kv_heads() == 2);
  CHECK(c.model.head_size() == 8);
  CHECK(to_json(parse_config(to_json(c), "again")) == to_json(c));
}

TEST_CASE("layer-level policies say what is kept") {
  const auto layer = [](const std::string& json) { return parse({"remat.default=" + json}).remat.defaults; };
  CHECK(layer("\"exact\"").keep_mid);
  CHECK(layer(R"({"policy":"exact"})").keep_mid);
  CHECK_FALSE(layer(R"({"policy":"exact","keep":[]})").keep_mid);
  CHECK(layer(R"({"policy":"exact","keep":["mid","gate_up"]})").keep_mid);
  CHECK(layer(R"({"policy":"exact","keep":["mid","gate_up"]})").ffn.keep == std::vector<std::string>{"gate_up"});
  CHECK(layer(R"({"policy":"greedy","fraction":0.5})").ffn.fraction == 0.5);
}

TEST_CASE("every mistake in a config is named with its path, what was expected and what was found") {
  // override, and what the message must contain
  const std::vector<std::pair<std::string, std::vector<std::string>>> mistakes{
      {"schedule.step=50", {"c.json", "schedule.step", "unknown key", "did you mean 'steps'?"}},
      {"modl=1", {"modl", "did you mean 'model'?"}},
      {"schedule.steps=\"many\"", {"schedule.steps", "expected a whole number >= 1", "found \"many\""}},
      {"schedule.steps=2.5", {"schedule.steps", "found 2.5"}},
      {"schedule.steps=0", {"schedule.steps", ">= 1", "found 0"}},
      {"schedule.steps=1e300", {"schedule.steps", "whole number"}},
      {"schedule.name=cosin", {"schedule.name", "cosine, linear, wsd, constant", "found \"cosin\""}},
      {"schedule.final_fraction=1.5", {"schedule.final_fraction", "[0, 1]"}},
      {"schedule.warmup_steps=1000", {"schedule.warmup_steps", "leaves nothing of 1000 steps"}},
      {"optimizer.betas=[0.9]", {"optimizer.betas", "array of 2 numbers"}},
      {"optimizer.betas=[0.9,1.0]", {"optimizer.betas", "found 1.0"}},
      {"optimizer.learning_rate=-1", {"optimizer.learning_rate", ">= 0"}},
      {"data.shuffle=yes", {"data.shuffle", "true or false", "\"yes\""}},
      {"data.sequence_length=4096", {"data.sequence_length", "max_position_embeddings 2048"}},
      {"data=[]", {"data", "expected an object, found an array"}},
      {"model.num_key_value_heads=3", {"model.num_key_value_heads", "3 does not divide num_attention_heads 4"}},
      {"model.hidden_size=33", {"model.num_attention_heads", "4 does not divide hidden_size 33"}},
      {"model.head_dim=7", {"model.head_dim", "must be even"}},
      {"model.vocab_size=0", {"model.vocab_size", "[1, 2147483647]"}},
      {"batch.tokens_per_step=100", {"batch.tokens_per_step", "100 is no whole number of micro-batches of 2 x 16 = 32", "96 or 128"}},
      {"precision=fp16", {"precision", "found \"fp16\""}},
      {"device=tpu", {"device", "auto, cpu, cuda"}},
      {"remat.default=exac", {"remat.default.policy", "unknown policy 'exac'", "did you mean 'exact'?"}},
      {"remat.default.ffn.fraction=0.5", {"remat.default.ffn.policy", "missing"}},
      {R"(remat.default={"policy":"greedy","fraction":0})", {"remat.default.fraction", "(0, 1]", "found 0"}},
      {R"(remat.default={"policy":"greedy","fraction":1.5})", {"remat.default.fraction", "(0, 1]"}},
      {R"(remat.default={"policy":"exact","fraction":0.5})", {"remat.default.fraction", "only greedy or sketch takes this", "exact"}},
      {R"(remat.default={"ffn":{"policy":"greedy","fraction":0.01}})", {"remat.default.ffn", "0.01 of 48 FFN neurons rounds to 0", "at least 0.0104"}},
      {R"(remat.default={"attention":{"policy":"greedy","fraction":0.2}})", {"remat.default.attention", "2 attention KV groups rounds to 0"}},
      {R"(remat.default={"ffn":{"policy":"sketch","fraction":0.5,"min_probability":0.9}})", {"remat.default.ffn", "min_probability 0.9", "draws 24", "<= 0.5"}},
      {R"(remat.default={"policy":"exact","keep":["gate"]})", {"remat.default.keep", "attn_norm, qkv, attn_out, ffn_norm, gate_up, swiglu, mid", "\"gate\""}},
      {R"(remat.default={"ffn":{"policy":"exact","keep":["qkv"]}})", {"remat.default.ffn.keep", "ffn_norm, gate_up, swiglu"}},
      {R"(remat.layers={"0-2":"exact","2-3":"store"})", {"remat.layers[\"2-3\"]", "overlaps the range \"0-2\""}},
      {R"(remat.layers={"0-9":"exact"})", {"remat.layers[\"0-9\"]", "layers 0 to 3"}},
      {R"(remat.layers={"3-1":"exact"})", {"remat.layers[\"3-1\"]", "runs backwards"}},
      {R"(remat.layers={"first":"exact"})", {"remat.layers[\"first\"]", "expected a layer"}},
      {R"(remat.layers={"1":{"fnn":"exact"}})", {"remat.layers[\"1\"].fnn", "unknown key", "did you mean 'ffn'?"}},
      {R"(remat.layers={"1":{}})", {"remat.layers[\"1\"]", "expected a policy name"}},
      {"remat.default=auto", {"memory.budget", "missing", "16GiB"}},
      {R"(remat.default={"policy":"auto","fraction":0.5})", {"remat.default.fraction", "only greedy or sketch takes this"}},
      {"memory.budget=16GB", {"memory.budget", "amount of memory", "16GB"}},
      {"memory.budget=-1", {"memory.budget", "amount of memory"}},
      {"memory.allow=[\"exact\"]", {"memory.allow", "greedy, sketch", "\"exact\""}},
      {"memory.allow=[\"greedy\"]", {"memory.max_variance", "missing"}},
  };
  for (const auto& [override_text, parts] : mistakes) {
    const std::string message = refusal({override_text});
    INFO(override_text << " -> " << message);
    for (const std::string& part : parts) CHECK(contains(message, part));
  }
}

TEST_CASE("files that are no config are refused") {
  CHECK(contains(refusal({}, "{\"model\": 1"), "not valid JSON at line 1"));
  CHECK(contains(refusal({}, "{\"seed\": 7e777}"), "number overflow parsing '7e777'"));
  CHECK(contains(refusal({}, "{}"), "model: missing"));
  CHECK(contains(refusal({}, "[]"), "expected an object"));
  CHECK(contains(refusal({}, R"({"seed": 1, "seed": 2, "model": {}})"), "the key \"seed\" appears twice"));
  CHECK(contains(refusal({}, R"({"model": {"hidden_size": 8}})"), "model.vocab_size: missing"));
  CHECK(contains(refusal({}, R"({"model": "nowhere"})"), "nowhere/config.json: cannot be read"));
  CHECK(contains(refusal({"steps"}), "expected key=value"));
  CHECK(contains(refusal({"seed.deep=1", "seed=1", "seed.deep=2"}), "is no object"));
  CHECK(contains(error_of([] { (void)load_config("nowhere.json"); }), "nowhere.json: cannot be read"));
  CHECK(contains(error_of([] { (void)load_config("/tmp"); }), "is a directory"));
}

TEST_CASE("a model can be taken from a Hugging Face directory") {
  const Config c = parse_config(R"({"model": ")" + data_path("hf-llama-tiny") + R"(", "data": {"sequence_length": 32}})", "c.json");
  CHECK(c.model.hidden_size == 64);
  CHECK(c.model.kv_heads() == 2);
  CHECK(c.model.rms_norm_eps == 1e-5);
}

TEST_CASE("the committed schema and the table of docs/config.md are those of the code") {
  CHECK(read_text_file(source_path("docs/config.schema.json")) == config_schema());
  CHECK(contains(read_text_file(source_path("docs/config.md")), config_markdown()));
}
