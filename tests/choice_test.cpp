// The choice of policies under a budget: against brute force, and as plans of real models.
#include <functional>
#include <set>

#include "llama_bench.h"
#include "relume/base/units.h"
#include "relume/plan/layer_costs.h"
#include "relume/train/plan_report.h"
#include "relume/train/step_bench.h"

using namespace relume;
using namespace relume::test;

namespace {

std::int64_t pick(std::mt19937& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<unsigned>(high - low + 1));
}

ChoiceProblem random_problem(std::mt19937& random, std::int64_t layers) {
  ChoiceProblem p{.fixed_bytes = pick(random, 0, 20), .head_bytes = pick(random, 0, 120), .elsewhere_bytes = pick(random, 0, 150)};
  const std::int64_t options = pick(random, 1, 5);
  for (std::int64_t k = 0; k < options; ++k) {
    const std::int64_t saved = pick(random, 0, 40);
    p.options.push_back({saved, saved + pick(random, 0, 60), static_cast<double>(pick(random, 0, 30)), static_cast<double>(pick(random, 0, 3))});
  }
  for (std::int64_t l = 0; l < layers; ++l) {
    std::vector<int> allowed;
    if (random() % 4 == 0) {
      allowed = {static_cast<int>(pick(random, 0, options - 1))};
    } else {
      for (int k = 0; k < static_cast<int>(options); ++k) allowed.push_back(k);
    }
    p.allowed.push_back(allowed);
  }
  return p;
}

/// Calls f with every choice there is.
void every_choice(const ChoiceProblem& p, const std::function<void(const std::vector<int>&)>& f) {
  std::vector<int> option;
  const std::function<void()> extend = [&] {
    if (option.size() == p.allowed.size()) return f(option);
    for (int k : p.allowed[option.size()]) {
      option.push_back(k);
      extend();
      option.pop_back();
    }
  };
  extend();
}

double sum(const ChoiceProblem& p, const std::vector<int>& option, double LayerCost::* figure) {
  double s = 0;
  for (int k : option) s += p.options[static_cast<std::size_t>(k)].*figure;
  return s;
}

Config auto_config(std::mt19937& random, std::int64_t layers) {
  Config c;
  const std::int64_t heads = pick(random, 1, 3) * 2;
  c.model = {.vocab_size = pick(random, 40, 600), .hidden_size = 16 * pick(random, 2, 5), .intermediate_size = 8 * pick(random, 5, 20), .num_hidden_layers = layers,
             .num_attention_heads = heads, .num_key_value_heads = random() % 2 ? 2 : heads, .head_dim = 8 * pick(random, 1, 4)};
  c.data.sequence_length = pick(random, 8, 64);
  c.batch.micro_batch_size = pick(random, 1, 6);
  c.remat.defaults = {{.policy = "auto"}, {.policy = "auto"}};
  if (random() % 3 == 0) c.remat.ranges.push_back({0, 0, {{.policy = "exact"}, {.policy = "auto"}}});
  if (random() % 3 == 0) c.remat.ranges.push_back({layers - 1, layers - 1, {{.policy = "greedy"}, {.policy = "selective"}}});
  if (c.remat.ranges.size() == 2 && layers == 1) c.remat.ranges.pop_back();
  c.memory.fine = random() % 4 == 0;
  return c;
}

const Backend& backend() {
  static const auto backend = make_null_backend(make_cpu_backend());
  return *backend;
}

}  // namespace

TEST_CASE("the choice is that of brute force, with any number of buckets that keeps all labels, and the minimum is exact") {
  std::mt19937 random(11);
  for (int instance = 0; instance < 1500; ++instance) {
    const ChoiceProblem p = random_problem(random, pick(random, 1, instance % 20 == 0 ? 6 : 4));
    std::int64_t least = kUnlimited, most = 0;
    every_choice(p, [&](const auto& option) {
      least = std::min(least, arena_bytes(p, option));
      most = std::max(most, arena_bytes(p, option));
    });
    REQUIRE(minimum_arena(p) == least);
    REQUIRE_FALSE(choose(p, {.arena_bytes = least - 1}));
    for (const std::int64_t arena : {least, least + 1, (least + most) / 2, most}) {
      double fastest = 1e300;
      every_choice(p, [&](const auto& option) {
        if (arena_bytes(p, option) <= arena) fastest = std::min(fastest, sum(p, option, &LayerCost::seconds));
      });
      for (const int buckets : {0, 4096}) {  // more buckets than bytes: nothing is rounded
        const auto c = choose(p, {.arena_bytes = arena, .buckets = buckets});
        REQUIRE(c);
        REQUIRE(c->seconds == Approx(fastest));
        REQUIRE(c->seconds == Approx(sum(p, c->option, &LayerCost::seconds)));
        REQUIRE(c->arena_bytes == arena_bytes(p, c->option));
        REQUIRE(c->arena_bytes <= arena);
      }
      REQUIRE(choose(p, {.arena_bytes = arena, .buckets = 4}));  // coarse, but never finds nothing where there is something
    }
  }
}

TEST_CASE("layers with the same options take theirs in ranges") {
  std::mt19937 random(12);
  for (int instance = 0; instance < 300; ++instance) {
    ChoiceProblem p = random_problem(random, 8);
    for (auto& allowed : p.allowed) allowed = p.allowed[0];
    const auto c = choose(p, {.arena_bytes = (minimum_arena(p) * 3 + 600) / 4});
    if (!c) continue;
    std::set<int> done;
    for (std::size_t l = 0; l < c->option.size(); ++l)
      if (l > 0 && c->option[l] != c->option[l - 1]) {
        CHECK(done.count(c->option[l]) == 0);
        done.insert(c->option[l - 1]);
      }
  }
}

TEST_CASE("a bound on the variance is kept, and close to the fastest choice that keeps it") {
  std::mt19937 random(13);
  double lost = 0, cases = 0;
  for (int instance = 0; instance < 400; ++instance) {
    const ChoiceProblem p = random_problem(random, 5);
    const std::int64_t arena = minimum_arena(p) + pick(random, 0, 60);
    const double bound = static_cast<double>(pick(random, 0, 10));
    double fastest = 1e300;
    every_choice(p, [&](const auto& option) {
      if (arena_bytes(p, option) <= arena && sum(p, option, &LayerCost::variance) <= bound) fastest = std::min(fastest, sum(p, option, &LayerCost::seconds));
    });
    const auto c = choose(p, {.arena_bytes = arena, .variance = bound});
    REQUIRE(c.has_value() == (fastest < 1e300));
    if (!c) continue;
    REQUIRE(c->variance <= bound);
    REQUIRE(c->seconds >= fastest - 1e-9);
    lost += c->seconds - fastest;
    cases += fastest;
  }
  CHECK(lost / cases < 0.02);  // the gap of the relaxation, on average
}

TEST_CASE("the parts of a recorded step add up to its lower bound, whatever the policies") {
  std::mt19937 random(14);
  for (int instance = 0; instance < 120; ++instance) {
    Config c = auto_config(random, pick(random, 1, 6));
    c.remat = {};
    for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) {
      static const char* const policies[] = {"store", "selective", "exact", "greedy", "sketch"};
      LayerPolicy policy{{.policy = policies[random() % 5], .fraction = 0.5, .min_probability = 0.2}, {.policy = policies[random() % 5], .fraction = 0.5, .min_probability = 0.2}};
      if (random() % 4 == 0) policy = {{.policy = "exact"}, {.policy = "exact"}, false};
      c.remat.ranges.push_back({l, l, policy});
    }
    INFO(to_json(c));
    const auto tape = record_training(c, make_parameter_layout(c.model), std::min<std::int64_t>(c.micro_batch_tokens(), 64));
    const Plan plan = plan_lifetimes(*tape, backend().kernels());
    const StepCosts costs = step_costs(*tape, plan, {});
    ChoiceProblem p{.options = costs.layers, .fixed_bytes = costs.fixed_bytes, .head_bytes = costs.head_bytes, .elsewhere_bytes = std::max(costs.elsewhere_bytes, costs.update_bytes)};
    std::vector<int> option;
    for (int l = 0; l < static_cast<int>(costs.layers.size()); ++l) option.push_back(l);
    REQUIRE(arena_bytes(p, option) == plan.lower_bound_bytes);
    double s = costs.head_s + costs.elsewhere_s + costs.update_s;
    for (const LayerCost& l : costs.layers) s += l.seconds;
    double all = 0;
    for (const PlannedNode& n : plan.nodes) all += seconds(n.cost, {});
    REQUIRE(s == Approx(all));
  }
}

TEST_CASE("10 configs under 20 budgets: within the budget, as predicted, never slower with more, as brute force chooses") {
  std::mt19937 random(15);
  for (int instance = 0; instance < 10; ++instance) {
    Config c = auto_config(random, instance < 5 ? pick(random, 1, 4) : instance < 8 ? 6 : pick(random, 5, 9));
    c.memory.budget = kUnlimited;
    INFO(to_json(c));
    const RematPlanner planner(c, backend().kernels(), {});
    const std::int64_t least = planner.minimum_bytes(), enough = planner.enough_bytes();
    double before = 1e300;
    for (int b = 0; b < 20; ++b) {
      c.memory.budget = least + (enough - least) * b / 19;
      const auto predicted = planner.choose(c.memory.budget);
      REQUIRE(predicted);
      const Program program = make_program(c, backend().kernels());
      REQUIRE(program.planned_bytes() <= c.memory.budget);
      REQUIRE(program.planned_bytes() == predicted->peak_bytes);
      REQUIRE(program.training.plan.arena_bytes == program.training.plan.lower_bound_bytes);
      REQUIRE(predicted->step_s == Approx(predicted_step_s(program.training, c.micro_batches(), {})));
      REQUIRE(predicted->step_s <= before * (1 + 1e-9) + 1e-4 * planner.store_step_s());  // head chunks differ by their traffic
      before = std::min(before, predicted->step_s);
      Config frozen = c;  // the same plan again from the policies written down
      frozen.remat = program.remat;
      const Program again = make_program(frozen, backend().kernels());
      REQUIRE(again.training.plan.arena_bytes == program.training.plan.arena_bytes);
      REQUIRE(again.head_chunk_rows == program.head_chunk_rows);
      if (c.memory.fine || c.model.num_hidden_layers > 6 || b % 10 != 2) continue;
      double fastest = 1e300;
      const ChoiceProblem& p = planner.problem();
      every_choice(p, [&](const auto& option) {
        if (arena_bytes(p, option) <= c.memory.budget - planner.persistent_bytes()) fastest = std::min(fastest, sum(p, option, &LayerCost::seconds));
      });
      REQUIRE(sum(p, predicted->option, &LayerCost::seconds) == Approx(fastest).epsilon(1e-3));
    }
  }
}

TEST_CASE("an impossible budget says to the byte what is needed, and what it names does fit") {
  Config c;
  c.model = tiny_model();
  c.data.sequence_length = 64;
  c.batch.micro_batch_size = 6;
  c.remat.defaults = {{.policy = "auto"}, {.policy = "auto"}};
  const std::int64_t least = RematPlanner(c, backend().kernels(), {}).minimum_bytes();
  c.memory.budget = least;
  CHECK(make_program(c, backend().kernels()).planned_bytes() == least);
  c.memory.budget = least - 1;
  try {
    (void)make_program(c, backend().kernels());
    FAIL("a budget below the minimum was accepted");
  } catch (const Error& e) {
    const std::string message = e.what();
    INFO(message);
    CHECK(e.code() == ErrorCode::kBudget);
    CHECK(exit_code(e.code()) == 3);
    CHECK(message.find("need at least") != std::string::npos);
    CHECK(message.find(exact_bytes(least)) != std::string::npos);
    const std::size_t micro = message.find("batch.micro_batch_size=");
    REQUIRE(micro != std::string::npos);
    c.batch.micro_batch_size = std::stoll(message.substr(micro + 23));
    CHECK(make_program(c, backend().kernels()).planned_bytes() <= c.memory.budget);
    ++c.batch.micro_batch_size;  // and it is the largest that does
    CHECK_THROWS_AS(make_program(c, backend().kernels()), Error);
    c.batch.micro_batch_size = 6;
    const std::size_t length = message.find("data.sequence_length=");
    REQUIRE(length != std::string::npos);
    c.data.sequence_length = std::stoll(message.substr(length + 21));
    CHECK(make_program(c, backend().kernels()).planned_bytes() <= c.memory.budget);
  }
}

TEST_CASE("explicit policies above the budget are refused, not changed") {
  Config c;
  c.model = tiny_model();
  c.data.sequence_length = 64;
  c.batch.micro_batch_size = 4;
  const std::int64_t needs = make_program(c, backend().kernels()).planned_bytes();
  c.memory.budget = needs;
  CHECK(make_program(c, backend().kernels()).planned_bytes() == needs);
  c.memory.budget = needs - 1;
  const std::string message = error_of([&] { (void)make_program(c, backend().kernels()); });
  CHECK(message.find("memory.budget") != std::string::npos);
  CHECK(message.find(exact_bytes(needs)) != std::string::npos);
}

TEST_CASE("approximate policies are chosen only where allowed, and only within the bound") {
  Config c;
  c.model = tiny_model();
  c.data.sequence_length = 64;
  c.batch.micro_batch_size = 4;
  c.remat.defaults = {{.policy = "auto"}, {.policy = "auto"}};
  c.memory.budget = RematPlanner(c, backend().kernels(), {}).minimum_bytes() + 100000;
  const auto approximate = [&] {
    const RematConfig remat = make_program(c, backend().kernels()).remat;
    int n = 0;
    for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) n += remat.layer(l).attention.approximate() + remat.layer(l).ffn.approximate();
    return n;
  };
  CHECK(approximate() == 0);
  c.memory.allow = {"greedy", "sketch"};
  c.memory.max_variance = 1;
  const int all = approximate();
  CHECK(all > 0);
  c.memory.max_variance = 0.02;
  CHECK(approximate() < all);
  CHECK(RematPlanner(c, backend().kernels(), {}).choose(c.memory.budget)->variance <= 0.02);
  c.memory.max_variance = 1e-9;
  CHECK(approximate() == 0);
}

TEST_CASE("the modelled variance is that of the formulas") {
  const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  // lognormal scores, log-sd 0.5: the lowest third of the components holds Phi(Phi^-1(1/3) - 1) of the energy
  CHECK(expected_relative_variance({.policy = "greedy", .fraction = 2.0 / 3.0}) == Approx(normal(-0.4307 - 1)).epsilon(0.02));
  CHECK(expected_relative_variance({.policy = "sketch", .fraction = 2.0 / 3.0, .min_probability = 0}) == Approx(0.23).epsilon(0.05));  // reference: water-filled 0.23
  CHECK(expected_relative_variance({.policy = "sketch", .fraction = 0.5, .min_probability = 0}) == Approx(0.58).epsilon(0.05));
  CHECK(expected_relative_variance({.policy = "sketch", .fraction = 1}) == 0);
  CHECK(expected_relative_variance({.policy = "exact"}) == 0);
}

TEST_CASE("a chosen plan trains bitwise like storing everything, and touches what was planned") {
  Config store;
  store.model = tiny_model();
  store.data.sequence_length = 48;
  store.batch.micro_batch_size = 2;
  store.optimizer.learning_rate = 1e-3;
  const auto cpu = make_cpu_backend();
  StepBench reference(store, *cpu);
  std::vector<double> losses;
  double s = 0;
  for (int i = 0; i < 3; ++i) losses.push_back(reference.step(i, s));
  Config chosen = store;
  chosen.remat.defaults = {{.policy = "auto"}, {.policy = "auto"}};
  const RematPlanner planner(chosen, cpu->kernels(), {});
  for (const double share : {0.0, 0.3, 0.7}) {
    chosen.memory.budget = planner.minimum_bytes() + static_cast<std::int64_t>(share * static_cast<double>(planner.enough_bytes() - planner.minimum_bytes()));
    StepBench bench(chosen, *cpu);
    for (std::size_t i = 0; i < losses.size(); ++i) CHECK(bench.step(static_cast<std::int64_t>(i), s) == losses[i]);
    CHECK(bench.executor().touched_bytes() == bench.program().training.plan.arena_bytes);
    CHECK(bench.program().planned_bytes() <= chosen.memory.budget);
  }
}

TEST_CASE("random plans on the CPU touch exactly what was planned") {
  std::mt19937 random(16);
  const auto cpu = make_cpu_backend();
  for (int instance = 0; instance < 12; ++instance) {
    Config c = auto_config(random, pick(random, 1, 4));
    c.memory.budget = kUnlimited;
    const RematPlanner planner(c, cpu->kernels(), {});
    c.memory.budget = pick(random, 0, 4) * (planner.enough_bytes() - planner.minimum_bytes()) / 4 + planner.minimum_bytes();
    StepBench bench(c, *cpu);
    double s = 0;
    CHECK(std::isfinite(bench.step(0, s)));
    CHECK(bench.executor().touched_bytes() == bench.program().training.plan.arena_bytes);
  }
}
