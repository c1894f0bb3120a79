// plan, audit and report as their users meet them.
#include <filesystem>

#include "cli.h"
#include "relume/base/units.h"
#include "relume/train/selection_audit.h"

using namespace relume;
using namespace relume::test;
using Json = nlohmann::json;

TEST_CASE("a budget gives policies, a config that says them, and a plan that train accepts") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Json store = relume_cli("plan c.json --set remat='{\"default\":\"store\"}' --json", dir).json();
  const Json whole = relume_cli("plan c.json --set remat='{\"default\":\"auto\"}' --set memory.budget=64MiB --json", dir).json();
  const auto least = whole["minimum_bytes"].get<std::int64_t>(), most = store["peak_bytes"].get<std::int64_t>();
  CHECK(least < most);
  CHECK(whole["peak_bytes"].get<std::int64_t>() <= most);
  const std::string budget = std::to_string((least + most) / 2);
  const std::string options = "c.json --set remat.layers={} --budget " + budget;
  const Result text = relume_cli("plan " + options + " --explain 1 --svg plan.svg --pareto pareto --write-config frozen.json", dir);
  INFO(text.err << text.out);
  REQUIRE(text.code == 0);
  for (const char* part : {"budget", "other budgets", "predicted time of a step", "arena over time", "layer 1: what it could keep", "> ", "instead of those in the config"})
    CHECK(contains(text.out, part));
  CHECK(contains(read_text_file(dir / "plan.svg"), "budget"));
  CHECK(contains(read_text_file(dir / "pareto.svg"), "</svg>"));
  CHECK(contains(read_text_file(dir / "pareto.csv"), "budget_bytes,overhead\n"));
  const Json plan = relume_cli("plan " + options + " --json", dir).json();
  CHECK(plan["peak_bytes"].get<std::int64_t>() <= std::stoll(budget));
  CHECK(plan["minimum_bytes"] == least);
  CHECK(plan["predicted_step_s"].get<double>() > 0);
  CHECK(plan["overhead"].get<double>() > 0);
  for (const Json& layer : plan["layers"]) CHECK_FALSE(contains(layer.dump(), "auto"));
  // Frozen, it is an ordinary config with the same plan.
  const Json frozen = relume_cli("plan frozen.json --json", dir).json();
  CHECK(frozen["peak_bytes"] == plan["peak_bytes"]);
  CHECK(frozen["layers"] == plan["layers"]);
  // As a file, train takes it for this config and refuses it for another.
  std::ofstream(dir / "plan.json") << plan.dump();
  const std::string same = "train c.json --set remat='{\"default\":\"auto\"}' --set memory.budget=" + budget + " --plan plan.json --steps 2 --json";
  const Result trained = relume_cli(same, dir);
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.json()["planned_bytes"] == plan["peak_bytes"]);
  const Result refused = relume_cli(same + " --set batch.micro_batch_size=4 --set output=other", dir);
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "plan of another config"));
  CHECK(contains(refused.err, "/batch/micro_batch_size: 2 there, 4 here"));
}

TEST_CASE("a budget that cannot be met ends with exit code 3 and what would fit") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Result r = relume_cli("plan c.json --set remat.layers={} --budget 200KiB", dir);
  CHECK(r.code == 3);
  CHECK(contains(r.err, "memory.budget: 200KiB is impossible: this model and batch need at least"));
  const Json plan = relume_cli("plan c.json --set remat.layers={} --budget 64MiB --json", dir).json();
  const auto least = plan["minimum_bytes"].get<std::int64_t>();
  CHECK(relume_cli(fmt::format("plan c.json --set remat.layers={{}} --budget {}", least), dir).code == 0);
  const Result below = relume_cli(fmt::format("train c.json --set remat.layers={{}} --set remat.default=auto --set memory.budget={}", least - 1), dir);
  CHECK(below.code == 3);
  CHECK(contains(below.err, exact_bytes(least)));
  CHECK_FALSE(std::filesystem::exists(dir / "run"));  // nothing was written
  CHECK(relume_cli("plan c.json --budget lots", dir).code == 2);
  CHECK(relume_cli("plan c.json --explain 9", dir).code == 2);
}

TEST_CASE("an automatic run resumes with the policies it began with, whatever the device is measured to be later") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Json plan = relume_cli("plan c.json --set remat.layers={} --budget 64MiB --json", dir).json();
  const std::int64_t budget = (plan["minimum_bytes"].get<std::int64_t>() + plan["peak_bytes"].get<std::int64_t>()) / 2;
  const std::string config = fmt::format("c.json --set remat='{{\"default\":\"auto\"}}' --set memory.budget={} ", budget);
  const auto layers = [](const std::string& text) { return Json::parse(text)["layers"]; };
  const auto set_rates = [&](double matmul, double attention) {
    const std::string path = dir / "cache/relume/rates.json";
    Json cache = Json::parse(read_text_file(path));
    for (auto& [key, rates] : cache.items()) rates = {{"matmul_flops", matmul}, {"attention_flops", attention}, {"bandwidth", 1e12}};
    std::ofstream(path) << cache.dump();
  };
  REQUIRE(relume_cli("plan " + config, dir).code == 0);  // measures, and fills the cache
  set_rates(1e12, 1e6);
  REQUIRE(relume_cli("train " + config + "--steps 5", dir).code == 0);
  const Json first = layers(read_text_file(dir / "run/plan.json"));
  set_rates(1e6, 1e12);
  CHECK(layers(relume_cli("plan " + config + "--json", dir).out) != first);  // a new run would choose otherwise
  std::ofstream(dir / "auto.json") << relume_cli("config show run/config.json", dir).out;
  REQUIRE(relume_cli("train auto.json --resume --steps 2", dir).code == 0);
  CHECK(layers(read_text_file(dir / "run/plan.json")) == first);
  std::string other = read_text_file(dir / "auto.json");
  other.replace(other.find(exact_bytes(budget)), exact_bytes(budget).size(), "64MiB");
  std::ofstream(dir / "auto.json") << other;
  const Result refused = relume_cli("train auto.json --resume", dir);
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "memory="));
}

TEST_CASE("the log and the metrics compare the plan with the run") {
  const TemporaryDirectory dir;
  prepare(dir);
  const Result r = relume_cli("train c.json --set audit.every_steps=10 --json", dir);
  INFO(r.err);
  REQUIRE(r.code == 0);
  CHECK(r.json()["predicted_step_s"].get<double>() > 0);
  CHECK(r.json()["measured_step_s"].get<double>() > 0);
  CHECK(contains(read_text_file(dir / "run/train.log"), "step predicted"));
  CHECK(contains(read_text_file(dir / "run/plan.svg"), "measured:"));
  std::ifstream file(dir / "run/metrics.jsonl");
  int audits = 0;
  Json last;
  for (std::string line; std::getline(file, line);) {
    last = Json::parse(line);
    if (!last.contains("audit")) continue;
    ++audits;
    CHECK(last["audit"].size() == 3);  // ffn of layer 1 and both blocks of layer 2: see prepare()
    for (const Json& row : last["audit"]) {
      CHECK(row["kept"].get<double>() > 0.3);
      CHECK(row["kept"].get<double>() <= 1);
      CHECK(row["never"].get<double>() <= 0.5);
    }
  }
  CHECK(audits == 4);
  CHECK(last["planned_bytes"] == last["touched_bytes"]);
}

TEST_CASE("the quality of a selection is that of its probabilities") {
  const std::vector<float> scores{3, 1, 2, 0};
  const SelectionQuality greedy = selection_quality(scores, {.policy = "greedy", .fraction = 0.5});
  CHECK(greedy.probability == std::vector<double>{1, 0, 1, 0});
  CHECK(greedy.kept == Approx(13.0 / 14));
  CHECK(greedy.variance == Approx(1.0 / 14));
  const SelectionQuality sketch = selection_quality(scores, {.policy = "sketch", .fraction = 0.5, .min_probability = 0.1});
  double expected = 0, sum = 0;
  for (std::size_t j = 0; j < 4; ++j) {
    sum += sketch.probability[j];
    expected += (1 / sketch.probability[j] - 1) * static_cast<double>(scores[j] * scores[j]) / 14;
  }
  CHECK(sum == Approx(2));
  CHECK(sketch.variance == Approx(expected));
  CHECK(sketch.largest_weight == Approx(10));
}

TEST_CASE("the audit reproduces theory: sketches are unbiased with the variance of their probabilities, greedy is not") {
  const TemporaryDirectory dir;
  prepare(dir);
  REQUIRE(relume_cli("train c.json --steps 20", dir).code == 0);
  const Result r = relume_cli("audit c.json --from run/checkpoints/step-00000020 --fractions 0.5 --batches 6 --draws 64 --svg audit.svg --out run/audit.json --json", dir);
  INFO(r.err);
  REQUIRE(r.code == 0);
  const Json j = r.json();
  CHECK(j["policies"].size() == 2 * 2 * 3);
  for (const Json& row : j["policies"]) {
    INFO(row.dump());
    const double error = row["relative_error"].get<double>(), theory = row["theory_variance"].get<double>();
    CHECK(row["k"].get<int>() == (row["block"] == "ffn" ? 24 : 1));
    if (row["policy"] == "greedy") {
      CHECK(error * error == Approx(theory).epsilon(0.02));  // exactly what the dropped components hold, to rounding
      CHECK(row["bias_ratio"].get<double>() > 10);
      CHECK(row["variance"] == 0);
    } else {
      CHECK(row["variance"].get<double>() < 1.1 * theory);
      CHECK(row["variance"].get<double>() > 0.85 * theory);
    }
    CHECK(row["cosine"].get<double>() > 0.3);
    CHECK(row["dx_cosine"].get<double>() > 0.2);
    CHECK(row["flops_saved"].get<double>() > 0.1);
    CHECK(row["adam_noise"].get<double>() > 0);
  }
  for (const Json& s : j["summary"]) {
    if (s["policy"] != "sketch") continue;
    INFO(s.dump());
    // One of two attention groups is drawn: a single random bit a draw, so the ratio scatters as its error says.
    const double off = std::abs(s["bias_ratio"].get<double>() - 1);
    CHECK((s["block"] == "ffn" ? off < 0.3 : off < 3 * s["bias_ratio_error"].get<double>()));
  }
  CHECK(contains(read_text_file(dir / "audit.svg"), "layer 2 ffn"));
  const Result report = relume_cli("report run", dir);
  CHECK(report.code == 0);
  CHECK(contains(read_text_file(dir / "run/report.html"), "Audit of run"));
}

TEST_CASE("a report is one page about one run or several, even if one was killed while writing") {
  const TemporaryDirectory dir;
  prepare(dir);
  REQUIRE(relume_cli("train c.json --steps 10", dir).code == 0);
  REQUIRE(relume_cli("train c.json --steps 5 --set output=second", dir).code == 0);
  std::ofstream(dir / "second/metrics.jsonl", std::ios::app) << "{\"step\": 6, \"lo";
  REQUIRE(relume_cli("report run second/ --out both.html", dir).code == 0);
  const std::string page = read_text_file(dir / "both.html");
  for (const char* part : {"<!doctype html>", "Training loss", "Learning rate", "Gradient norm", "Throughput", ">run<", ">second<", "Planned memory", "</html>"}) CHECK(contains(page, part));
  CHECK_FALSE(contains(page, "http://localhost"));
  CHECK_FALSE(contains(page, "<script"));
  CHECK(relume_cli("report run second", dir).code == 2);
  const Result none = relume_cli("report nowhere", dir);
  CHECK(none.code == 2);
  CHECK(contains(none.err, "nowhere: no metrics.jsonl"));
}
