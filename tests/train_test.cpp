// Optimizer, schedules, accumulation, initial weights.
#include <fmt/format.h>

#include "llama_bench.h"
#include "relume/train/data_loader.h"
#include "relume/train/schedule.h"

using namespace relume;
using namespace relume::test;

namespace {

/// Ten optimizer steps on the fixture's tokens with a gradient clip; returns losses and norms.
struct TenSteps {
  std::vector<double> losses, norms;
};

TenSteps ten_steps(LlamaBench& b, bool from_shard) {
  const SafetensorsFile fixture(data_path("adamw-10-steps.safetensors"));
  const auto all = read_i32(fixture, "tokens");  // (10, 4, 49)
  DataLoader loader(data_path("adamw-tokens.bin"), {48, 512});
  TenSteps result;
  for (std::size_t step = 0; step < 10; ++step) {
    std::vector<std::int32_t> tokens(192), targets(192);
    for (std::size_t s = 0; s < 4; ++s) {
      if (from_shard) {
        loader.next(tokens.data() + 48 * s, targets.data() + 48 * s);
        continue;
      }
      for (std::size_t t = 0; t < 48; ++t) {
        tokens[48 * s + t] = all[(step * 4 + s) * 49 + t];
        targets[48 * s + t] = all[(step * 4 + s) * 49 + t + 1];
      }
    }
    b.write("tokens", tokens);
    b.write("targets", targets);
    const StepState state{.step = static_cast<std::int64_t>(step), .learning_rate = 1e-3, .inverse_targets = 1.0 / 192};
    b.memory().write("step_state", &state, 1);
    const StepResult clear{.updates = static_cast<std::int64_t>(step)};
    b.memory().write("step_result", &clear, 1);
    b.run();
    result.losses.push_back(b.result().nll / 192);
    result.norms.push_back(b.result().gradient_norm);
  }
  return result;
}

}  // namespace

TEST_CASE("ten AdamW steps equal PyTorch's, from given tokens and from the shard") {
  const SafetensorsFile fixture(data_path("adamw-10-steps.safetensors"));
  for (const bool from_shard : {false, true}) {
    LlamaBench b(tiny_model(), 4, 48);
    b.record(RematConfig{});
    const TenSteps r = ten_steps(b, from_shard);
    const auto losses = read_f32(fixture, "losses"), norms = read_f32(fixture, "grad_norms");
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(std::abs(r.losses[i] - losses[i]) < 1e-5);
      CHECK(std::abs(r.norms[i] / norms[i] - 1) < 1e-5);
    }
    const auto flat = b.read<float>("parameters", b.layout.elements);
    for (const Parameter& p : b.layout.parameters)
      for (const HfPiece& piece : p.pieces) {
        INFO(piece.name);
        std::vector<float> hf(static_cast<std::size_t>(piece.rows * p.columns()));
        copy_to_hf(p, piece, flat.data() + p.offset, hf.data());
        CHECK(relative_error(hf, read_f32(fixture, "param." + piece.name)) < 1e-5);
      }
  }
}

TEST_CASE("steps that are clipped and steps that are not both equal PyTorch's") {
  const SafetensorsFile fixture(data_path("adamw-10-steps.safetensors"));
  LlamaBench b(tiny_model(), 4, 48);
  b.record(RematConfig{}, false, {.grad_clip = 3.32});
  const TenSteps r = ten_steps(b, false);
  const auto losses = read_f32(fixture, "mixed_losses");
  for (std::size_t i = 0; i < 10; ++i) CHECK(std::abs(r.losses[i] - losses[i]) < 1e-5);
}

TEST_CASE("an update with something not finite changes nothing and is reported") {
  LlamaBench b(tiny_model(), 1, 8);
  b.record(RematConfig{});
  b.write<std::int32_t>("tokens", std::vector<std::int32_t>(8, 1));
  b.write<std::int32_t>("targets", std::vector<std::int32_t>(8, 2));
  const StepState state{.learning_rate = 1e-3, .inverse_targets = 1.0 / 8};
  const auto weights = [&] { return b.read<float>("parameters", b.layout.elements); };
  const auto step = [&](float poison, std::int64_t bad_scores) {
    const StepResult clear{.bad_scores = bad_scores};
    b.memory().write("step_state", &state, 1);
    b.memory().write("step_result", &clear, 1);
    b.executor().run_micro_batch();
    auto gradient = b.read<float>("gradients", b.layout.elements);
    gradient[100] += poison;
    b.write("gradients", gradient);
    b.executor().run_update();
    return b.result();
  };
  const auto before = weights();
  for (const float poison : {std::nanf(""), INFINITY}) {
    const StepResult r = step(poison, 0);
    CHECK(r.skipped == 1);
    CHECK(r.updates == 0);
    CHECK(weights() == before);
    CHECK(b.read<float>("gradients", b.layout.elements) == std::vector<float>(static_cast<std::size_t>(b.layout.elements), 0.f));
    CHECK(b.read<float>("adam_m", b.layout.elements) == std::vector<float>(static_cast<std::size_t>(b.layout.elements), 0.f));
  }
  CHECK(step(0, 1).skipped == 1);
  CHECK(weights() == before);
  CHECK(step(0, 0).skipped == 0);
  CHECK(weights() != before);
}

TEST_CASE("loss and gradients are the same for one micro-batch of 8 and four of 2 with unequal masks") {
  const ModelConfig m = tiny_model();
  std::vector<std::int32_t> tokens, targets;
  for (double x : random_values(8 * 16, 4)) tokens.push_back(static_cast<std::int32_t>(std::abs(x) * 1000) % 512);
  for (double x : random_values(8 * 16, 5)) targets.push_back(static_cast<std::int32_t>(std::abs(x) * 1000) % 512);
  std::int64_t valid = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (i % 16 < i / 16 * 2) targets[i] = -100;  // row r has 2 r masked targets
    valid += targets[i] >= 0;
  }
  const auto run = [&](std::int64_t micro) {
    LlamaBench b(m, 8 / micro, 16);
    b.record(RematConfig{});
    const StepResult clear;
    b.memory().write("step_result", &clear, 1);
    const auto rows = static_cast<std::size_t>(8 / micro * 16);
    for (std::size_t i = 0; i < static_cast<std::size_t>(micro); ++i) {
      b.write<std::int32_t>("tokens", {tokens.begin() + static_cast<std::ptrdiff_t>(i * rows), tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * rows)});
      b.write<std::int32_t>("targets", {targets.begin() + static_cast<std::ptrdiff_t>(i * rows), targets.begin() + static_cast<std::ptrdiff_t>((i + 1) * rows)});
      const StepState state{.micro_batch = static_cast<std::int64_t>(i), .micro_batches = micro, .inverse_targets = 1 / static_cast<double>(valid)};
      b.memory().write("step_state", &state, 1);
      b.executor().run_micro_batch();
    }
    return std::pair{b.result().nll, b.flat_gradient()};
  };
  const auto whole = run(1), parts = run(4);
  CHECK(parts.first == Approx(whole.first).epsilon(1e-6));
  CHECK(relative_error(parts.second, whole.second) < 1e-5);
}

TEST_CASE("accumulation under exact policies stays bitwise equal to store, with grouped queries") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const auto run = [&](const LayerPolicy& policy) {
    RematConfig remat;
    remat.defaults = policy;
    LlamaBench b(tiny_model(), 2, 16, dtype);
    b.record(remat);
    for (std::int64_t i = 0; i < 3; ++i) {
      std::vector<std::int32_t> tokens;
      for (double x : random_values(32, 60 + static_cast<unsigned>(i))) tokens.push_back(static_cast<std::int32_t>(std::abs(x) * 1000) % 512);
      b.write("tokens", tokens);
      b.write("targets", next_token_targets(tokens, 16));
      const StepState state{.micro_batch = i, .micro_batches = 3, .inverse_targets = 1.0 / 90};
      b.memory().write("step_state", &state, 1);
      b.executor().run_micro_batch();
    }
    return b.flat_gradient();
  };
  const auto store = run({});
  CHECK(run({{.policy = "exact"}, {.policy = "exact"}}) == store);
  CHECK(run({{.policy = "selective"}, {.policy = "selective"}}) == store);
  CHECK(run({{.policy = "exact"}, {.policy = "exact"}, false}) == store);
}

TEST_CASE("tied embeddings sum the gradients of both uses") {
  ModelConfig m = tiny_model();
  m.tie_word_embeddings = true;
  m.hidden_size = 32;  // not the fixture's shape: random weights
  m.head_dim = 8;
  LlamaBench b(m, 1, 12, DType::f64);
  b.record(RematConfig{});
  b.initialize_weights(2);
  std::vector<std::int32_t> tokens;
  for (double x : random_values(12, 6)) tokens.push_back(static_cast<std::int32_t>(std::abs(x) * 1000) % 512);
  b.write("tokens", tokens);
  b.write("targets", next_token_targets(tokens, 12));
  b.step(11);
  const auto analytic = b.flat_gradient();
  const Parameter& e = b.layout.find("embedding");
  auto flat = b.read<double>("parameters", b.layout.elements);
  for (const std::int64_t i : {static_cast<std::int64_t>(tokens[3]) * 32 + 5, static_cast<std::int64_t>(tokens[7]) * 32, std::int64_t{17}}) {
    const auto loss = [&](double h) {
      auto moved = flat;
      moved[static_cast<std::size_t>(e.offset + i)] += h;
      b.write("parameters", moved);
      b.step(11);
      return b.result().nll / 11;
    };
    CHECK(analytic[static_cast<std::size_t>(e.offset + i)] == Approx((loss(1e-5) - loss(-1e-5)) / 2e-5).epsilon(1e-6).margin(1e-10));
  }
}

TEST_CASE("every schedule warms up linearly and ends at its final fraction") {
  const OptimizerConfig o{.learning_rate = 2.0};
  for (const char* name : {"cosine", "linear", "wsd", "constant"})
    for (const std::int64_t warmup : {0, 1, 7, 19}) {
      INFO(name << " warmup " << warmup);
      const ScheduleConfig s{.name = name, .warmup_steps = warmup, .steps = 20, .final_fraction = 0.1, .decay_fraction = 0.3};
      for (std::int64_t step = 0; step < warmup; ++step)
        CHECK(learning_rate(o, s, step) == Approx(2.0 * static_cast<double>(step + 1) / static_cast<double>(warmup)));
      const double last = learning_rate(o, s, 19);
      CHECK(last == Approx(std::string(name) == "constant" ? 2.0 : 0.2));
      CHECK(learning_rate(o, s, 100) == last);
      for (std::int64_t step = warmup + 1; step < 20; ++step) CHECK(learning_rate(o, s, step) <= learning_rate(o, s, step - 1) + 1e-12);
      if (warmup < 19) CHECK(learning_rate(o, s, warmup) == Approx(2.0));
    }
  const ScheduleConfig wsd{.name = "wsd", .warmup_steps = 2, .steps = 20, .final_fraction = 0.0, .decay_fraction = 0.25};
  CHECK(learning_rate(o, wsd, 14) == 2.0);
  CHECK(learning_rate(o, wsd, 17) == Approx(0.8));
}

TEST_CASE("initial weights are a function of seed and name, whatever the threads and the layout") {
  ModelConfig m = tiny_model();
  m.num_hidden_layers = 8;
  m.initializer_range = 0.02;
  const ParameterLayout layout = make_parameter_layout(m);
  const auto values = [&](const std::string& name, std::uint64_t seed, int threads) {
    (void)make_cpu_backend({.threads = threads});
    const Parameter& p = layout.find(name);
    std::vector<float> v(static_cast<std::size_t>(p.shape.elements()));
    initialize(p, m, seed, v.data());
    return v;
  };
  const auto spread = [](const std::vector<float>& v) {
    double sum = 0, squares = 0;
    for (float x : v) {
      sum += x;
      squares += static_cast<double>(x) * x;
    }
    return std::pair{sum / static_cast<double>(v.size()), std::sqrt(squares / static_cast<double>(v.size()))};
  };
  CHECK(values("layers.0.qkv", 1, 1) == values("layers.0.qkv", 1, 3));
  CHECK(values("layers.0.qkv", 1, 1) != values("layers.0.qkv", 2, 1));
  CHECK(values("layers.0.qkv", 1, 1) != values("layers.1.qkv", 1, 1));
  CHECK(values("layers.0.attn_norm", 1, 2) == std::vector<float>(64, 1.f));
  const auto qkv = spread(values("layers.0.qkv", 1, 2)), down = spread(values("layers.0.down", 1, 2));
  CHECK(std::abs(qkv.first) < 0.001);
  CHECK(qkv.second == Approx(0.02).epsilon(0.03));
  CHECK(down.second == Approx(0.02 / 4).epsilon(0.03));  // 1 / sqrt(2 * 8)
  // The Hugging Face tensor down_proj [64, 160] has element (r, c) where the component-major weight has (c, r).
  const Parameter& p = layout.find("layers.0.down");
  std::vector<float> hf(64 * 160);
  const auto own = values("layers.0.down", 1, 2);
  copy_to_hf(p, p.pieces[0], own.data(), hf.data());
  CHECK(hf[3 * 160 + 7] == own[7 * 64 + 3]);
  std::vector<float> back(own.size());
  copy_from_hf(p, p.pieces[0], hf.data(), back.data());
  CHECK(back == own);
}
