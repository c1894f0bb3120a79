// The CUDA backend, on a device or on the emulator: whole steps against the CPU, recorded steps, what it says when something fails.
// Kernels one by one: kernels_test.cpp takes CUDA as one more instruction set. Nothing here runs in a build without CUDA, or without a
// device; the emulated build always has one.
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "cuda_emu/cudnn_interpreter.h"
#include "cuda_emu/planted_bugs.h"
#include "llama_bench.h"
#include "relume/train/step_bench.h"

using namespace relume;
using namespace relume::test;

namespace {

LayerPolicy both(const char* policy, double fraction = 0.5) {
  const BlockPolicy p{.policy = policy, .fraction = fraction, .min_probability = 0.2};
  return {p, p};
}

}  // namespace

TEST_CASE("CUDA: gradients of a training step equal the CPU's under every policy", "[cuda]") {
  if (cuda_devices() == 0) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const char* policy : {"store", "selective", "exact", "greedy", "sketch"}) {
      INFO(policy << " " << to_string(dtype));
      RematConfig remat;
      remat.defaults = both(policy, dtype == DType::bf16 ? 1.0 : 0.5);  // rounding to bf16 may swap components with nearly equal scores
      std::vector<std::vector<double>> gradients;
      std::vector<double> losses;
      for (const bool cuda : {false, true}) {
        LlamaBench b(tiny_model(), 2, 21, dtype, cuda ? make_cuda_backend() : make_cpu_backend());
        b.record(remat);
        b.initialize_weights(3);
        refresh_derived_weights(b.layout, b.memory());
        std::vector<std::int32_t> tokens;
        for (int i = 0; i < 42; ++i) tokens.push_back(i * i % 97);
        b.write("tokens", tokens);
        b.write("targets", next_token_targets(tokens, 21));
        b.step(40);
        gradients.push_back(b.flat_gradient());
        losses.push_back(b.result().nll);
      }
      CHECK(losses[1] == Approx(losses[0]).epsilon(dtype == DType::f32 ? 1e-5 : 2e-3));
      CHECK(relative_error(gradients[1], gradients[0]) < (dtype == DType::f32 ? 2e-5 : 3e-2));
    }
}

TEST_CASE("CUDA: training steps are recorded, replayed, the same every time, and follow the CPU", "[cuda]") {
  if (cuda_devices() == 0) return;
  Config c;
  c.model = tiny_model();
  c.model.num_hidden_layers = 2;
  c.data.sequence_length = 24;
  c.batch.micro_batch_size = 2;
  c.optimizer.learning_rate = 1e-3;
  c.remat.defaults = both("sketch");
  c.remat.ranges.push_back({0, 0, both("greedy")});
  c.precision = "fp32";
  std::vector<std::vector<double>> losses;
  for (const int kind : {0, 1, 2, 3}) {  // CPU, CUDA as graphs twice, CUDA node by node
    const auto backend = kind == 0 ? make_cpu_backend() : make_cuda_backend({.graphs = kind != 3});
    StepBench bench(c, *backend);
    losses.emplace_back();
    double s = 0;
    for (int i = 0; i < 4; ++i) losses.back().push_back(bench.step(i, s));
  }
  CHECK(losses[1] == losses[2]);
  CHECK(losses[1] == losses[3]);
  for (std::size_t i = 0; i < 4; ++i) CHECK(losses[1][i] == Approx(losses[0][i]).epsilon(1e-4));
  CHECK(losses[1][3] != losses[1][0]);
}

TEST_CASE("CUDA: errors name what was asked for", "[cuda]") {
  if (cuda_devices() == 0) {
    CHECK(error_of([] { (void)make_cuda_backend(); }).find("device cuda") != std::string::npos);
    return;
  }
  CHECK(error_of([] { (void)make_cuda_backend({.device = 99}); }).find("no device 99") != std::string::npos);
}

TEST_CASE("CUDA: a plan for a described device says its peak and its time", "[cuda]") {
  if (!cuda_kernels()) {
    CHECK(error_of([] { (void)make_described_backend("h200"); }).find("no CUDA kernels") != std::string::npos);
    return;
  }
  CHECK(error_of([] { (void)make_described_backend("h900"); }).find("expected h200") != std::string::npos);
  const auto h200 = make_described_backend("h200");
  CHECK(h200->device().memory_bytes > std::int64_t{100} << 30);
  Config c = load_config(source_path("configs/llama-488m.json"));
  c.precision = resolve_precision(c.precision, h200->device());
  CHECK(c.precision == "bf16");
  const Program p = make_program(c, h200->kernels(), described_devices()[0].rates);
  CHECK(p.training.plan.arena_bytes == p.training.plan.lower_bound_bytes);
  const double step_s = predicted_step_s(p.training, c.micro_batches(), described_devices()[0].rates);
  CHECK(step_s > 191e12 / 989e12);  // no faster than the data sheet's peak
  CHECK(step_s < 1);
  CHECK(error_of([&] { (void)h200->allocate(1); }).find("plans only") != std::string::npos);
}

TEST_CASE("CUDA: the emulator notices planted bugs, and nothing where there is none", "[cuda][planted]") {
  constexpr const char* kWhich = "RELUME_TEST_PLANTED_BUG";
  if (const char* which = std::getenv(kWhich)) {  // the process of its own that is started below: some bugs end it
    std::signal(SIGABRT, SIG_DFL);  // not the test framework's
    _exit(planted_bugs()[std::stoul(which)].run(true) ? 0 : 1);
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (std::size_t i = 0; i < planted_bugs().size(); ++i) {
    const PlantedBug& planted = planted_bugs()[i];
    INFO(planted.name);
    CHECK(planted.run(false));
    const int status = std::system(fmt::format("{}={} exec '{}' '[planted]' >/dev/null 2>&1", kWhich, i, self).c_str());
    if (planted.noticed == Noticed::kStops)
      CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) > 1));
    else
      CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 1));
  }
}

TEST_CASE("CUDA: the cuDNN graphs mean causal attention and its gradient, with grouped queries", "[cuda]") {
  for (const auto& [l, sequences] : {std::pair{AttentionLayout{24, 4, 2, 16}, std::int64_t{2}}, std::pair{AttentionLayout{17, 3, 3, 8}, std::int64_t{1}}}) {
    const std::int64_t rows = sequences * l.tokens, columns = (l.heads + 2 * l.kv_heads) * l.head_dim, width = l.heads * l.head_dim;
    const std::vector<double> qkv = coarse_values(rows * columns, 3), dout = coarse_values(rows * width, 4);  // exact in bf16
    std::vector<float> out, dqkv;
    if (!interpret_cudnn_attention(l, sequences, {qkv.begin(), qkv.end()}, {dout.begin(), dout.end()}, out, dqkv)) return;
    Bench b;
    const Tensor x = b.parameter("qkv", {rows, columns}, DType::f64), y = attention(x, l);
    b.keep(y, "out");
    b.tape.backward({{y, b.input("dout", {rows, width}, DType::f64)}});
    b.keep(b.tape.gradient(x), "dqkv");
    b.start();
    b.write("qkv", qkv);
    b.write("dout", dout);
    b.run();
    CHECK(relative_error(std::vector<double>(out.begin(), out.end()), b.read<double>("out", rows * width)) < 1e-2);
    CHECK(relative_error(std::vector<double>(dqkv.begin(), dqkv.end()), b.read<double>("dqkv", rows * columns)) < 2e-2);
  }
}

TEST_CASE("CUDA: selections are those of the CPU, with ties, zeros and few components", "[cuda]") {
  if (cuda_devices() == 0) return;
  std::mt19937 random(5);
  for (const std::int64_t n : {1, 2, 7, 48, 513, 1500})
    for (const int kind : {0, 1, 2}) {  // random, many ties, mostly zero
      const std::int64_t k = std::max<std::int64_t>(1, n * 2 / 3);
      std::vector<float> scores;
      for (std::int64_t j = 0; j < n; ++j) {
        const auto r = static_cast<float>(random() % 1000) / 1000;
        scores.push_back(kind == 0 ? r : kind == 1 ? static_cast<float>(random() % 3) : random() % 4 ? 0.f : r);
      }
      std::vector<std::vector<std::int32_t>> top, drawn, probabilities;
      std::vector<std::vector<float>> weights;
      for (const bool cuda : {false, true}) {
        Bench b(cuda ? make_cuda_backend() : make_cpu_backend());
        const Tensor s = b.input("scores", {n}, DType::f32), state = b.input("state", {sizeof(StepState)}, DType::u8), result = b.input("result", {sizeof(StepResult)}, DType::u8);
        b.keep(select_top_k(s, result, k).indices, "top");
        const SketchSelection sketch = select_sketch(s, state, result, k, 0.1, 3, 1);
        b.keep(sketch.selection.indices, "drawn");
        b.keep(sketch.selection.weights, "weights");
        b.keep(sketch.probabilities, "probabilities");
        b.start();
        b.write("scores", scores);
        const StepState given{.seed = 7, .step = 11, .micro_batch = 1, .micro_batches = 3};
        const StepResult clear{};
        b.memory().write("state", &given, 1);
        b.memory().write("result", &clear, 1);
        b.run();
        top.push_back(b.read<std::int32_t>("top", k));
        drawn.push_back(b.read<std::int32_t>("drawn", k));
        weights.push_back(b.read<float>("weights", k));
        probabilities.push_back(b.read<std::int32_t>("probabilities", n));
      }
      INFO("n " << n << ", kind " << kind);
      CHECK(top[0] == top[1]);
      CHECK(probabilities[0] == probabilities[1]);  // sums in another order move the water level by less than 2^-24
      CHECK(drawn[0] == drawn[1]);
      CHECK(weights[0] == weights[1]);
    }
}

TEST_CASE("CUDA: an update with something not finite changes nothing and is reported", "[cuda]") {
  if (cuda_devices() == 0) return;
  LlamaBench b(tiny_model(), 1, 8, DType::f32, make_cuda_backend());
  b.record(RematConfig{});
  b.initialize_weights(2);
  const std::vector<std::int32_t> tokens(8, 5);
  b.write("tokens", tokens);
  b.write("targets", tokens);
  const auto before = b.read<float>("parameters", b.layout.elements);
  for (const bool broken : {true, false}) {
    const StepState state{.learning_rate = 1e-3, .inverse_targets = broken ? std::nan("") : 1.0 / 8};
    const StepResult clear{};
    b.memory().write("step_state", &state, 1);
    b.memory().write("step_result", &clear, 1);
    b.run();
    CHECK(b.result().skipped == (broken ? 1 : 0));
    CHECK(b.result().updates == (broken ? 0 : 1));
    CHECK((b.read<float>("parameters", b.layout.elements) == before) == broken);
    for (float g : b.read<float>("gradients", b.layout.elements)) REQUIRE(g == 0);
  }
}
