// The command line as its users meet it: exit codes, JSON, runs that stop and go on, files that are damaged.
#include <filesystem>
#include <thread>

#include "cli.h"

using namespace relume;
using namespace relume::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

std::string weights_of(const TemporaryDirectory& dir, const std::string& checkpoint) {
  return hash_file(dir / (checkpoint + "/model.safetensors")) + hash_file(dir / (checkpoint + "/optimizer.safetensors"));
}

std::vector<Json> metrics_of(const TemporaryDirectory& dir, const std::string& run) {
  std::vector<Json> lines;
  std::ifstream file(dir / (run + "/metrics.jsonl"));
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("training learns, reports and leaves a Hugging Face directory behind") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Result r = relume_cli("train c.json --json", dir);
  INFO(r.err);
  REQUIRE(r.code == 0);
  const Json s = r.json();
  CHECK(s["steps"] == 40);
  CHECK(s["final_loss"].get<double>() < 3.6);
  CHECK(s["validation_perplexity"].get<double>() < 40);  // of 64 tokens
  CHECK(s["touched_bytes"] == s["arena_bytes"]);
  CHECK(s["planned_bytes"].get<std::int64_t>() > 0);
  CHECK(s["tok_per_s"].get<double>() > 0);
  for (const char* file : {"config.json", "plan.json", "plan.svg", "metrics.jsonl", "train.log"}) CHECK(fs::exists(dir / (std::string("run/") + file)));
  const std::string checkpoint = s["checkpoint"];
  CHECK(checkpoint == "run/checkpoints/step-00000040");
  for (const char* file : {"config.json", "model.safetensors", "generation_config.json", "optimizer.safetensors", "trainer_state.json", "manifest.json"})
    CHECK(fs::exists(dir / (checkpoint + "/" + file)));
  CHECK_FALSE(fs::exists(dir / "run/checkpoints/step-00000020"));  // keep_last 2
  CHECK(fs::exists(dir / "run/checkpoints/step-00000030"));

  const auto lines = metrics_of(dir, "run");
  CHECK(lines.size() == 43);
  CHECK(lines[0]["step"] == 1);
  for (const char* key : {"loss", "grad_norm", "learning_rate", "tokens", "step_ms", "tok_per_s", "mfu", "hfu", "skipped"}) CHECK(lines[0].contains(key));
  CHECK(lines[0]["tokens"] == 64);
  CHECK(lines[39 + 1]["learning_rate"].get<double>() == Approx(0.001));
  CHECK(lines[20]["validation_loss"].is_number());

  const Result e = relume_cli("eval " + checkpoint + " --data val_0.bin --context 16 --tokens 400 --json", dir);
  REQUIRE(e.code == 0);
  CHECK(e.json()["perplexity"].get<double>() == Approx(s["validation_perplexity"].get<double>()).epsilon(1e-6));
  CHECK(e.json()["tokens_scored"] == 400);
  CHECK(e.json()["unigram_perplexity"].get<double>() > e.json()["perplexity"].get<double>());
  const Result again = relume_cli("eval " + checkpoint + " --data val_0.bin --context 16 --tokens 400 --batch-size 3 --json", dir);
  CHECK(again.json()["nll"].get<double>() == Approx(e.json()["nll"].get<double>()).epsilon(1e-6));
  CHECK(relume_cli("inspect " + checkpoint + " --json", dir).json()["kind"] == "checkpoint");
}

TEST_CASE("a run that stops and resumes equals the straight run bit for bit, across files and epochs") {
  const TemporaryDirectory dir;
  prepare(dir);  // 311 windows an epoch, 4 a step: 40 steps stay inside the first; 100 cross into the second
  const std::string precision = GENERATE("fp32", "auto");  // auto: bf16 where the processor has it
  const std::string common = "--set schedule.steps=100 --set evaluation.every_steps=0 --set checkpoint.every_steps=0 --set precision=" + precision + " ";
  REQUIRE(relume_cli("train c.json --json --set output=straight " + common, dir).code == 0);
  for (const char* steps : {"13", "70", "1"}) {
    REQUIRE(relume_cli(fmt::format("train c.json --json {} --steps {} {}", common, steps, fs::exists(dir / "run") ? "--resume" : ""), dir).code == 0);
  }
  REQUIRE(relume_cli("train c.json --json --resume " + common, dir).code == 0);
  CHECK(weights_of(dir, "run/checkpoints/step-00000100") == weights_of(dir, "straight/checkpoints/step-00000100"));
  const auto a = metrics_of(dir, "run"), b = metrics_of(dir, "straight");
  std::vector<double> losses_a, losses_b;
  for (const auto& line : a)
    if (line.contains("loss")) losses_a.push_back(line["loss"]);
  for (const auto& line : b)
    if (line.contains("loss")) losses_b.push_back(line["loss"]);
  CHECK(losses_a == losses_b);
}

TEST_CASE("bf16 needs a processor that has it, and a run keeps its precision") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Result r = relume_cli("train c.json --set precision=bf16", dir, "RELUME_ISA=baseline");
  CHECK(r.code == 2);
  CHECK(contains(r.err, "--set precision=fp32"));
  CHECK(contains(r.err, "bf16"));
  CHECK_FALSE(fs::exists(dir / "run"));
  if (!make_cpu_backend()->device().bf16) {
    WARN("this processor has no bf16: training in it is not tested");
    return;
  }
  const Result trained = relume_cli("train c.json --json --set precision=bf16", dir);
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.json()["validation_perplexity"].get<double>() < 40);
  CHECK(trained.json()["touched_bytes"] == trained.json()["arena_bytes"]);
  const Result scored = relume_cli("eval run/checkpoints/step-00000040 --data val_0.bin --context 16 --tokens 400 --precision bf16 --json", dir);
  CHECK(scored.json()["perplexity"].get<double>() == Approx(trained.json()["validation_perplexity"].get<double>()).epsilon(1e-5));
  CHECK(scored.json()["dtype"] == "bf16");
  const Result other = relume_cli("train c.json --resume --set schedule.steps=50", dir);
  CHECK(other.code == 2);
  CHECK(contains(other.err, "precision"));
}

TEST_CASE("SIGTERM and SIGINT save and stop with the right exit code, and the run goes on") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TemporaryDirectory dir;
    prepare(dir);
    const std::string command = fmt::format("cd {} && exec {} train c.json --set schedule.steps=1000000 --set checkpoint.every_steps=0 >out.txt 2>err.txt",
                                            dir.path(), RELUME_BINARY);
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 600 && metrics_of(dir, "run").size() < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + signal);
    CHECK(contains(read_text_file(dir / "out.txt"), "stopped and saved"));
    const Result r = relume_cli("train c.json --set schedule.steps=1000000 --set checkpoint.every_steps=0 --resume --steps 2 --json", dir);
    INFO(r.err);
    CHECK(r.code == 0);
  }
}

TEST_CASE("a damaged checkpoint is passed over for an older one, at whatever byte it was cut") {
  const TemporaryDirectory dir;
  prepare(dir);
  REQUIRE(relume_cli("train c.json --steps 20 --json", dir).code == 0);
  const std::string newest = dir / "run/checkpoints/step-00000020";
  fs::copy(newest, dir / "whole", fs::copy_options::recursive);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json", "manifest.json"}) {
    const auto size = fs::file_size(newest + "/" + file);
    for (const auto bytes : {std::uintmax_t{0}, std::uintmax_t{1}, size / 2, size - 2}) {  // the last byte of JSON is a newline
      INFO(file << " cut to " << bytes << " of " << size);
      fs::resize_file(newest + "/" + file, bytes);
      fs::remove_all(dir / "run/checkpoints/step-00000011");
      const Result r = relume_cli("train c.json --resume --steps 1 --json", dir);
      CHECK(r.code == 0);
      CHECK(contains(r.err, "passed over"));
      CHECK(contains(r.json()["checkpoint"].get<std::string>(), "step-00000011"));
      const Result direct = relume_cli("train c.json --resume=run/checkpoints/step-00000020 --steps 1 --json", dir);
      CHECK(direct.code == 2);
      CHECK(contains(direct.err, "no valid checkpoint"));
      fs::copy_file(dir / (std::string("whole/") + file), newest + "/" + file, fs::copy_options::overwrite_existing);
    }
  }
  std::fstream weights(newest + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);  // one flipped byte
  weights.seekp(5000);
  weights.put('\x7f');
  weights.close();
  fs::remove_all(dir / "run/checkpoints/step-00000011");
  CHECK(contains(relume_cli("train c.json --resume --steps 1 --json", dir).err, "does not match its hash"));
}

TEST_CASE("resuming refuses what is not the same run") {
  const TemporaryDirectory dir;
  prepare(dir);
  CHECK(relume_cli("train c.json --resume", dir).code == 2);  // nothing to resume from
  REQUIRE(relume_cli("train c.json --steps 2 --json", dir).code == 0);
  const Result again = relume_cli("train c.json", dir);
  CHECK(again.code == 2);
  CHECK(contains(again.err, "holds a run already"));
  const Result model = relume_cli("train c.json --resume --set model.intermediate_size=64", dir);
  CHECK(model.code == 2);
  CHECK(contains(model.err, "/model/intermediate_size: 48 there, 64 here"));
  CHECK(contains(relume_cli("train c.json --resume --set seed=9", dir).err, "/seed: 1 there, 9 here"));
  const Result other = relume_cli("train c.json --resume --steps 1 --set remat.default=store --json", dir);
  CHECK(other.code == 0);
  CHECK(contains(other.err, "policies change"));
  std::ofstream(dir / "d.json") << [&] {
    Json j = Json::parse(read_text_file(dir / "c.json"));
    j["remat"] = {{"default", "exact"}};
    return j.dump();
  }();
  const Result silent = relume_cli("train d.json --resume --steps 1", dir);
  CHECK(silent.code == 2);
  CHECK(contains(silent.err, "--set remat="));
}

TEST_CASE("a run that diverges stops with a message after ten skipped steps") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Result r = relume_cli("train c.json --set optimizer.learning_rate=1e30 --set optimizer.grad_clip=0 --set schedule.warmup_steps=0 --set evaluation.every_steps=0", dir);
  CHECK(r.code == 1);
  CHECK(contains(r.err, "10 steps in a row were skipped"));
  CHECK(contains(r.err, "hint: a lower optimizer.learning_rate"));
  CHECK(contains(r.out, "SKIPPED"));
  const auto lines = metrics_of(dir, "run");
  CHECK(lines.back()["skipped"] == true);
  CHECK(lines.back()["skipped_total"] == 10);
}

TEST_CASE("training starts from given weights") {
  const TemporaryDirectory dir;
  fs::copy_file(data_path("adamw-tokens.bin"), dir / "t.bin");
  std::ofstream(dir / "c.json") << fmt::format(R"({{"model": "{0}", "init": "{0}", "data": {{"train": "t.bin", "sequence_length": 48, "shuffle": false}},
    "batch": {{"micro_batch_size": 4}}, "optimizer": {{"learning_rate": 0.001}}, "schedule": {{"name": "constant", "steps": 10}}, "output": "run"}})",
                                               data_path("hf-llama-tiny"));
  const Result r = relume_cli("train c.json --json", dir);
  INFO(r.err);
  REQUIRE(r.code == 0);
  const auto lines = metrics_of(dir, "run");
  const SafetensorsFile fixture(data_path("adamw-10-steps.safetensors"));
  const auto losses = read_f32(fixture, "losses");
  for (std::size_t i = 0; i < 10; ++i) CHECK(std::abs(lines[i]["loss"].get<double>() - losses[i]) < 1e-5);
}

TEST_CASE("mistakes on the command line are answered with exit code 2 and the nearest word") {
  const TemporaryDirectory dir;
  prepare(dir);
  const auto check = [&](const std::string& arguments, const std::string& part) {
    const Result r = relume_cli(arguments, dir);
    INFO(arguments << " -> " << r.err);
    CHECK(r.code == 2);
    CHECK(contains(r.err, part));
    CHECK(r.out.empty());
    CHECK(r.err.size() < 600);
  };
  check("", "subcommand");
  check("trian c.json", "did you mean 'train'?");
  check("plan c.json --jsn", "did you mean '--json'?");
  check("tokenize convert x --out y --format raw", "see 'relume tokenize convert --help'");
  check("generat x", "'generat' is not known to 'relume'; did you mean 'generate'?");
  check("plan", "config");
  check("plan nowhere.json", "nowhere.json: cannot be read");
  check("plan c.json --set model.hidden_size=x", "model.hidden_size");
  check("train c.json --set data.train=none.bin", "no file matches");
  check("eval nowhere --data val_0.bin", "nowhere/config.json");
  check("eval " + data_path("hf-llama-tiny"), "--data FILE");
  check("eval " + data_path("hf-llama-tiny") + " --data val_0.bin --context 100000", "at most 256 tokens");
  check("eval " + data_path("hf-llama-tiny") + " --text c.json", "neither tokenizer.model nor tokenizer.json");
  check("inspect c.json", "no token shard");
  check("tokenize encode --tokenizer " + data_path("spm-tiny/tokenizer.model"), "--text S or --in FILE");
  check("tokenize decode --tokenizer " + data_path("spm-tiny/tokenizer.model") + " --ids 1,x", "found 'x'");
  check("tokenize shard --tokenizer t.model --in nowhere --out o", "t.model");
}

TEST_CASE("a token that the model does not have stops the run with its place") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Result r = relume_cli("train c.json --set model.vocab_size=40 --json", dir);
  CHECK(r.code == 2);
  CHECK(contains(r.err, "is not below the vocabulary size 40"));
  CHECK(contains(r.err, "train_"));
}

TEST_CASE("output that cannot be written is an error before training, and leaves nothing") {
  const TemporaryDirectory dir;
  prepare(dir);
  std::ofstream(dir / "file") << "x";
  const Result r = relume_cli("train c.json --set output=file/run", dir);
  CHECK(r.code == 1);
  CHECK(contains(r.err, "file/run: cannot be made a directory"));
  CHECK(relume_cli("plan c.json --svg /proc/nowhere/x.svg", dir).code == 1);
}

TEST_CASE("the small commands print what they say, and JSON alone with --json") {
  const TemporaryDirectory dir;
  prepare(dir);
  CHECK(relume_cli("--version", dir).out.starts_with("relume 0."));
  CHECK(contains(relume_cli("--help", dir).out, "tokenize"));
  const Result plan = relume_cli("plan c.json --json --svg p.svg", dir);
  CHECK(plan.code == 0);
  CHECK(plan.json()["layers"].size() == 3);
  CHECK(contains(read_text_file(dir / "p.svg"), "</svg>"));
  CHECK(contains(relume_cli("plan c.json", dir).out, "planned peak"));
  CHECK(relume_cli("config check c.json", dir).code == 0);
  CHECK(Json::parse(relume_cli("config show c.json", dir).out)["schedule"]["steps"] == 40);
  CHECK(Json::parse(relume_cli("config schema", dir).out)["title"] == "relume configuration");
  const std::string tokenizer = data_path("spm-tiny/tokenizer.model");
  const Result ids = relume_cli("tokenize encode --tokenizer " + tokenizer + " --text 'a b' --bos --json", dir);
  CHECK(ids.json()["ids"][0] == 1);
  std::ofstream(dir / "t.txt") << "a\n b";
  const auto from_file = relume_cli("tokenize encode --tokenizer " + tokenizer + " --in t.txt --json", dir).json()["ids"];
  std::string list;
  for (int id : from_file) list += (list.empty() ? "" : ",") + std::to_string(id);
  CHECK(relume_cli("tokenize decode --tokenizer " + tokenizer + " --ids " + list + " --json", dir).json()["text"] == "a\n b");
  const Result shard = relume_cli("inspect train_0.bin --vocab-size 64 --json", dir);
  CHECK(shard.json()["tokens"] == 3000);
  CHECK(relume_cli("inspect train_0.bin --vocab-size 10", dir).code == 2);
  CHECK(relume_cli("inspect " + tokenizer + " --json", dir).json()["vocab_size"] == 800);
  CHECK(relume_cli("inspect " + data_path("hf-llama-tiny") + " --json", dir).json()["hidden_size"] == 64);
  CHECK(relume_cli("inspect " + data_path("hf-llama-tiny/model.safetensors") + " --json", dir).json()["tensors_total"] == 30);
  const Result bench = relume_cli("bench step --shape 11m --batch 1 --seq 16 --steps 2 --warmup 0 --json", dir);
  for (const char* key : {"framework", "shape", "params", "dtype", "recompute", "batch", "seq", "threads", "step_s", "min_s", "tok_per_s", "peak_rss_mib", "planned_bytes", "loss"})
    CHECK(bench.json().contains(key));
}
