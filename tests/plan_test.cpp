// Planning: offsets, lower bound, graph check, shipped configs, memory touched and allocations inside a step.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "allocation_counter.h"
#include "llama_bench.h"
#include "relume/train/plan_report.h"

using namespace relume;
using namespace relume::test;

// --- placement ------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Lifetime> random_lifetimes(std::mt19937& random, int n, int ticks) {
  std::vector<Lifetime> v;
  for (int i = 0; i < n; ++i) {
    const int begin = static_cast<int>(random() % static_cast<unsigned>(ticks));
    v.push_back({static_cast<std::int64_t>(1 + random() % 5000), begin, begin + 1 + static_cast<int>(random() % static_cast<unsigned>(ticks - begin))});
  }
  return v;
}

RematConfig random_remat(std::mt19937& random, std::int64_t layers) {
  const auto block = [&](const std::string& kind) {
    static const char* const policies[] = {"store", "selective", "exact", "greedy", "sketch"};
    BlockPolicy p{.policy = policies[random() % 5], .fraction = 0.5, .min_probability = 0.2};
    if (p.policy == "exact")
      for (const std::string& name : block_value_names(kind))
        if (random() % 2) p.keep.push_back(name);
    return p;
  };
  RematConfig r;
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerPolicy policy{block("attention"), block("ffn")};
    if (random() % 5 == 0) policy = {{.policy = "exact"}, {.policy = "exact"}, false};
    r.ranges.push_back({l, l, policy});
  }
  return r;
}

Config random_config(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<std::int64_t> choices) { return choices.begin()[random() % choices.size()]; };
  Config c;
  ModelConfig& m = c.model;
  m.num_hidden_layers = pick({1, 2, 3, 5, 9});
  m.num_attention_heads = pick({2, 4, 6});
  m.num_key_value_heads = random() % 2 ? 2 : m.num_attention_heads;
  m.head_dim = pick({8, 16, 32});
  m.hidden_size = pick({32, 48, 96});
  m.intermediate_size = pick({40, 96, 130});
  m.vocab_size = pick({50, 300, 3000});
  m.tie_word_embeddings = random() % 3 == 0;
  c.data.sequence_length = pick({8, 33, 64});
  c.batch.micro_batch_size = pick({1, 2, 5});
  c.remat = random_remat(random, m.num_hidden_layers);
  return c;
}

const Backend& backend() {
  static const auto backend = make_null_backend(make_cpu_backend());
  return *backend;
}

const KernelTable& kernels() { return backend().kernels(); }

}  // namespace

TEST_CASE("placement never overlaps and never beats the lower bound") {
  std::mt19937 random(3);
  for (int instance = 0; instance < 60; ++instance) {
    const auto lifetimes = random_lifetimes(random, 40, 30);
    const Placement p = place(lifetimes);
    CHECK_FALSE(find_overlap(lifetimes, p.offsets));
    const std::int64_t bound = max_live(lifetimes).bytes;
    CHECK(p.arena_bytes >= bound);
    CHECK(static_cast<double>(p.arena_bytes) <= 1.15 * static_cast<double>(bound));
  }
}

TEST_CASE("an overlap is found") {
  const std::vector<Lifetime> lifetimes{{512, 0, 3}, {512, 2, 5}, {512, 3, 4}};
  CHECK(find_overlap(lifetimes, std::vector<std::int64_t>{0, 256, 0}));
  CHECK_FALSE(find_overlap(lifetimes, std::vector<std::int64_t>{0, 512, 0}));
}

TEST_CASE("the arena equals the lower bound on 240 random models, shapes and policies") {
  std::mt19937 random(5);
  for (int instance = 0; instance < 240; ++instance) {
    const Config c = random_config(random);
    const Program p = make_program(c, kernels());
    INFO(to_json(c));
    REQUIRE(p.training.plan.arena_bytes == p.training.plan.lower_bound_bytes);
    REQUIRE(p.evaluation.plan.arena_bytes == p.evaluation.plan.lower_bound_bytes);
    std::int64_t most = 0;
    for (std::int64_t live : p.training.plan.live_bytes()) most = std::max(most, live);
    REQUIRE(most == p.training.plan.lower_bound_bytes);  // an independent sum over ticks
  }
}

TEST_CASE("every shipped config is valid and planned to the lower bound") {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("configs"))) {
    INFO(entry.path().string());
    Config c = load_config(entry.path().string());
    c.precision = resolve_precision(c.precision, backend().device());
    const Program p = make_program(c, kernels());
    CHECK(p.training.plan.arena_bytes == p.training.plan.lower_bound_bytes);
    const PlanReport r = report_plan(c, p, kernels(), backend().device(), {});
    const auto json = nlohmann::json::parse(plan_json(r));
    for (const char* key : {"parameters", "persistent_bytes", "arena_bytes", "lower_bound_bytes", "peak_bytes", "step_flops", "recompute_flops"})
      CHECK(json.at(key).is_number());
    CHECK(json.at("layers").size() == static_cast<std::size_t>(c.model.num_hidden_layers));
    CHECK(plan_svg(r).find("</svg>") != std::string::npos);
    if (entry.path().filename().string().starts_with("llama-488m")) CHECK(json.at("parameters") == 487845504);
    ++found;
  }
  CHECK(found >= 6);
}

TEST_CASE("the llama-488m variants differ in remat alone") {
  const auto without_remat = [](const std::string& name) {
    auto j = nlohmann::json::parse(to_json(load_config(source_path("configs/" + name + ".json"))));
    j.erase("remat");
    return j;
  };
  for (const char* variant : {"llama-488m-exact", "llama-488m-greedy", "llama-488m-sketch"}) CHECK(without_remat(variant) == without_remat("llama-488m"));
}

TEST_CASE("saved bytes follow the published formulas") {
  // n tokens, e = 4 bytes: store keeps n e (6 d + 2 kv + 3 f) + 4 n (h + 2) a layer, exact n e 2 d, whole-layer exact n e d.
  Config c;
  c.model = tiny_model();
  c.data.sequence_length = 48;
  c.batch.micro_batch_size = 2;
  const std::int64_t n = 96, d = 64, kv = 32, f = 160, h = 4, e = 4;
  const auto saved = [&](const LayerPolicy& policy, std::int64_t layer) {
    c.remat.defaults = policy;
    return report_plan(c, make_program(c, kernels()), kernels(), backend().device(), {}).layers[static_cast<std::size_t>(layer)].saved_bytes;
  };
  const LayerPolicy store, exact{{.policy = "exact"}, {.policy = "exact"}}, whole{{.policy = "exact"}, {.policy = "exact"}, false},
      selective{{.policy = "selective"}, {.policy = "selective"}}, greedy{{.policy = "greedy"}, {.policy = "greedy"}};
  CHECK(saved(store, 1) == n * e * (6 * d + 2 * kv + 3 * f) + 4 * n * (h + 2));
  CHECK(saved(selective, 1) == n * e * (4 * d + 2 * kv + 2 * f) + 4 * n * h);
  CHECK(saved(exact, 1) == n * e * 2 * d);
  CHECK(saved(whole, 1) == n * e * d);
  CHECK(saved(greedy, 1) == n * e * 2 * d + 4 * (f + 2));  // and one score a component
}

TEST_CASE("flops of the policies are those of the formulas") {
  Config c;
  c.model = tiny_model();
  c.data.sequence_length = 48;
  c.batch.micro_batch_size = 2;
  const double n = 96, d = 64, kv = 32, f = 160, layers = 3, v = 512, t = 48;
  const double forward = layers * (4 * d * d + 4 * d * kv + 2 * d * (t + 1) + 6 * d * f), head = 2 * d * v;
  const auto matmuls = [&](const RematConfig& remat) {
    c.remat = remat;
    const Program p = make_program(c, kernels());
    double flops = 0;
    for (const PlannedNode& planned : p.training.plan.nodes) {
      const Node& node = p.training.tape->nodes()[static_cast<std::size_t>(planned.node)];
      if (node.op == &kMatmul || node.op == &kAttention || node.op == &kAttentionGradient || node.op == &kLinearCrossEntropy) flops += planned.cost.flops;
    }
    return flops / n;
  };
  const auto both = [](const char* policy, double fraction = 1) {
    RematConfig r;
    r.defaults = {{.policy = policy, .fraction = fraction, .min_probability = 0.1}, {.policy = policy, .fraction = fraction, .min_probability = 0.1}};
    return r;
  };
  const double backward = layers * (2 * (4 * d * d + 4 * d * kv + 6 * d * f) + 5 * d * (t + 1)) + 2 * head;
  const double recompute = layers * (2 * d * d + 4 * d * kv + 2 * d * (t + 1) + 4 * d * f);  // neither projection back
  CHECK(matmuls({}) == Approx(forward + head + backward));
  CHECK(matmuls(both("exact")) == Approx(forward + head + backward + recompute));
  CHECK(matmuls(both("greedy", 0.5)) == Approx(forward + head + 0.5 * (backward - 2 * head + recompute) + 2 * head));
}

// --- graph check ----------------------------------------------------------------------------------------------------------------

TEST_CASE("a value read after its storage was overwritten is refused") {
  Bench b;
  const Tensor x = b.input("x", {2, 3}, DType::f32), w = b.parameter("w", {4, 3}, DType::f32);
  const Tensor y = linear(x, w);
  b.tape.backward({{y, b.input("dy", {2, 4}, DType::f32)}});
  const Tensor old = b.input("old", {4, 3}, DType::f32);
  b.tape.emit(kStore, {w, old});  // overwrites `old`
  b.keep(add(old, w), "sum");     // and reads what was there before
  CHECK(error_of([&] { b.start(); }).find("[graph check]") != std::string::npos);
}

TEST_CASE("two tapes that disagree about a persistent value are refused") {
  Bench a;
  a.keep(a.input("x", {2, 3}, DType::f32), "y");
  Tape other;
  other.persistent("x", {9, 9}, DType::f32, Role::kInput);
  Memory memory(a.backend());
  memory.add(a.tape, make_plan(a.tape, a.backend().kernels()));
  CHECK(error_of([&] { memory.add(other, make_plan(other, a.backend().kernels())); }).find("'x' has") != std::string::npos);
}

TEST_CASE("the null backend plans and touches nothing") {
  const auto null = make_null_backend(make_cpu_backend());
  CHECK(null->kernels().matmul.run != nullptr);
  CHECK(error_of([&] { (void)null->allocate(1); }).find("plans only") != std::string::npos);
}

// --- executor -------------------------------------------------------------------------------------------------------------------

TEST_CASE("a step allocates nothing and touches exactly the planned arena, under every policy") {
  for (const char* policy : {"store", "selective", "exact", "greedy", "sketch"}) {
    INFO(policy);
    RematConfig remat;
    remat.defaults = {{.policy = policy, .fraction = 0.5, .min_probability = 0.2}, {.policy = policy, .fraction = 0.5, .min_probability = 0.2}};
    LlamaBench b(tiny_model(), 2, 48);
    b.record(remat);
    b.write<std::int32_t>("tokens", std::vector<std::int32_t>(96, 3));
    b.write<std::int32_t>("targets", std::vector<std::int32_t>(96, 5));
    const StepState state{.learning_rate = 1e-3, .inverse_targets = 1.0 / 96};
    b.memory().write("step_state", &state, 1);
    Executor plain(b.tape, b.plan(), b.memory());  // without poison, which touches by itself
    const auto run = [&] {
      plain.run_micro_batch();
      plain.run_update();
    };
    run();
    const Allocations counted = count_allocations(run);
    CHECK(counted.ours == 0);
    // oneDNN's interface builds a table of arguments for each call; it is small and gone when the call returns.
    CHECK(counted.onednn_bytes < 1024 * static_cast<std::int64_t>(b.plan().nodes.size()));

    // Touched: the highest byte that differs after a step from what it was filled with, for two different fillings.
    std::int64_t touched = 0;
    const std::int64_t bytes = b.plan().arena_bytes;
    for (const int filling : {0x00, 0x55}) {
      std::memset(b.memory().arena(), filling, static_cast<std::size_t>(bytes));
      run();
      std::int64_t top = bytes;
      while (top > 0 && b.memory().arena()[top - 1] == static_cast<std::byte>(filling)) --top;
      touched = std::max(touched, top);
    }
    CHECK(touched <= bytes);
    CHECK(touched > bytes - kAlignment);  // the last value may be padded
    CHECK(plain.touched_bytes() == bytes);
  }
}

TEST_CASE("the backend refuses to allocate while a step runs") {
  static Backend* backend = nullptr;
  static const OpDef allocates{"allocates", kStore.infer, nullptr, kStore.cost, [](const NodeContext&) { (void)backend->allocate(4096); }};
  Bench b;
  backend = &b.backend();
  b.tape.emit(allocates, {b.input("x", {4}, DType::f32), b.input("y", {4}, DType::f32)});
  b.start();
  CHECK(error_of([&] { b.run(); }).find("4096 bytes asked for inside a step") != std::string::npos);
}

TEST_CASE("poison does not change a result, so nothing is read outside its lifetime") {
  RematConfig remat;
  remat.ranges.push_back({0, 0, {{.policy = "greedy"}, {.policy = "sketch"}}});
  remat.ranges.push_back({1, 1, {{.policy = "exact"}, {.policy = "exact"}, false}});
  LlamaBench b(tiny_model(), 2, 48);
  b.record(remat);
  const auto tokens = random_values<double>(96, 4);
  std::vector<std::int32_t> ids;
  for (double x : tokens) ids.push_back(static_cast<std::int32_t>(std::abs(x) * 1000) % 512);
  b.write<std::int32_t>("tokens", ids);
  b.write<std::int32_t>("targets", next_token_targets(ids, 48));
  b.step(94);
  const auto poisoned = b.flat_gradient();
  Executor plain(b.tape, b.plan(), b.memory());
  b.write_real("gradients", std::vector<float>(static_cast<std::size_t>(b.layout.elements), 0.f));
  plain.run_micro_batch();
  CHECK(b.flat_gradient() == poisoned);
}
