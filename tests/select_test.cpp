// The choice of components: exact sizes and probabilities of the draw, ties, repeatability, bad scores.
#include <set>

#include "relume/ops/ops.h"
#include "relume/base/selection.h"
#include "support.h"

using namespace relume;
using namespace relume::test;

namespace {

/// Scores of several characters: equal, spread, extremely spread, mostly zero, all zero.
std::vector<double> scores_of_kind(int kind, std::int64_t n, unsigned seed) {
  std::vector<double> s = random_values(n, seed);
  for (double& x : s) x = kind == 0 ? 1 : kind == 1 ? std::exp(x) : kind == 2 ? std::exp(6 * x) : kind == 3 ? double(x > 0.7) : 0;
  return s;
}

struct SelectBench : Bench {
  SelectBench(std::int64_t n, std::int64_t k, bool sketch, std::int64_t layer = 0, int threads = 0) : Bench({.threads = threads}), k_(k) {
    const Tensor scores = input("scores", {n}, DType::f32), state = input("state", {sizeof(StepState)}, DType::u8),
                 result = input("result", {sizeof(StepResult)}, DType::u8);
    if (sketch) {
      const SketchSelection s = select_sketch(scores, state, result, k, 0.3, layer, 1);
      keep(s.selection.indices, "indices");
      keep(s.selection.weights, "weights");
      keep(s.probabilities, "p");
    } else {
      keep(select_top_k(scores, result, k).indices, "indices");
    }
    start();
  }
  std::vector<std::int32_t> choose(const std::vector<float>& scores, StepState state = {}) {
    write("scores", scores);
    memory().write("state", &state, 1);
    run();
    return read<std::int32_t>("indices", k_);
  }
  std::int64_t k_;
};

}  // namespace

TEST_CASE("a systematic draw has exactly k components and sums to k, for any scores") {
  std::mt19937_64 random(1);
  for (int instance = 0; instance < 600; ++instance) {
    const auto n = static_cast<std::int64_t>(2 + random() % 300), k = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(n));
    const double floor = random() % 2 ? 0 : 0.8 * static_cast<double>(k) / static_cast<double>(n);
    const auto scores = scores_of_kind(instance % 5, n, static_cast<unsigned>(instance));
    std::vector<std::int32_t> p(static_cast<std::size_t>(n));
    water_fill(scores.data(), n, k, floor, p.data());
    std::int64_t sum = 0;
    for (std::int32_t x : p) {
      sum += x;
      REQUIRE((x >= 1 && x <= static_cast<std::int32_t>(kDrawUnit)));
      REQUIRE(x >= std::floor(floor * static_cast<double>(kDrawUnit)) - 2);
    }
    REQUIRE(sum == k * static_cast<std::int64_t>(kDrawUnit));
    for (int draw = 0; draw < 5; ++draw) {
      std::vector<std::int32_t> indices(static_cast<std::size_t>(k), -1);
      std::vector<double> weights(static_cast<std::size_t>(k));
      systematic_draw(p.data(), n, k, random() % kDrawUnit, indices.data(), weights.data());
      REQUIRE(std::set<std::int32_t>(indices.begin(), indices.end()).size() == static_cast<std::size_t>(k));
      REQUIRE(std::is_sorted(indices.begin(), indices.end()));
      REQUIRE(indices.front() >= 0);
      for (std::size_t i = 0; i < indices.size(); ++i)
        REQUIRE(weights[i] == static_cast<double>(kDrawUnit) / p[static_cast<std::size_t>(indices[i])]);
    }
  }
}

TEST_CASE("equal scores get equal probabilities, certain components weight exactly 1") {
  const std::vector<double> scores{100, 1, 1, 1, 1};
  std::vector<std::int32_t> p(5);
  water_fill(scores.data(), 5, 3, 0.0, p.data());
  CHECK(p[0] == static_cast<std::int32_t>(kDrawUnit));
  for (int j = 2; j < 5; ++j) CHECK(std::abs(p[static_cast<std::size_t>(j)] - p[1]) <= 1);
}

TEST_CASE("inclusion counts over 100,000 steps match the probabilities") {
  constexpr std::int64_t kN = 12, kK = 8, kDraws = 100000;
  SelectBench b(kN, kK, true);
  std::vector<float> scores;
  for (double x : random_values(kN, 3)) scores.push_back(static_cast<float>(std::exp(x)));
  std::vector<double> count(kN, 0);
  for (std::int64_t step = 0; step < kDraws; ++step)
    for (std::int32_t j : b.choose(scores, {.seed = 7, .step = step})) ++count[static_cast<std::size_t>(j)];
  const auto p = b.read<std::int32_t>("p", kN);
  double chi_squared = 0;
  for (std::size_t j = 0; j < kN; ++j) {
    const double probability = p[j] * 0x1p-24, expected = probability * kDraws;
    if (p[j] == static_cast<std::int32_t>(kDrawUnit))
      CHECK(count[j] == kDraws);
    else
      chi_squared += (count[j] - expected) * (count[j] - expected) / (expected * (1 - probability));
  }
  CHECK(chi_squared < 31.3);  // 99.8 % of a chi-squared with 12 degrees of freedom
}

TEST_CASE("over all offsets a component is taken exactly P times") {
  std::vector<double> scores;
  for (double x : random_values(6, 8)) scores.push_back(std::exp(x));
  std::vector<std::int32_t> p(6);
  water_fill(scores.data(), 6, 4, 0.3, p.data());
  std::vector<std::int64_t> count(6, 0);
  for (std::uint64_t offset = 0; offset < kDrawUnit; ++offset) {
    std::int32_t indices[4];
    float weights[4];
    systematic_draw(p.data(), 6, 4, offset, indices, weights);
    for (std::int32_t j : indices) ++count[static_cast<std::size_t>(j)];
  }
  for (std::size_t j = 0; j < 6; ++j) CHECK(count[j] == p[j]);
}

TEST_CASE("micro-batches with the same scores share components evenly") {
  constexpr std::int64_t kN = 40, kK = 26;
  SelectBench b(kN, kK, true);
  std::vector<float> scores;
  for (double x : random_values(kN, 4)) scores.push_back(static_cast<float>(std::exp(x)));
  for (std::int64_t count : {2, 3, 4, 8}) {
    std::vector<std::int64_t> used(kN, 0);
    for (std::int64_t m = 0; m < count; ++m)
      for (std::int32_t j : b.choose(scores, {.seed = 3, .step = 5, .micro_batch = m, .micro_batches = count})) ++used[static_cast<std::size_t>(j)];
    const auto p = b.read<std::int32_t>("p", kN);
    for (std::size_t j = 0; j < kN; ++j) {
      const double mean = static_cast<double>(count) * p[j] * 0x1p-24;
      CHECK(static_cast<double>(used[j]) >= std::floor(mean) - (count == 3 ? 1 : 0));
      CHECK(static_cast<double>(used[j]) <= std::ceil(mean) + (count == 3 ? 1 : 0));
    }
  }
}

TEST_CASE("a draw is a function of seed, step, micro-batch, layer and block alone") {
  std::vector<float> scores;
  for (double x : random_values(200, 6)) scores.push_back(static_cast<float>(std::exp(x)));
  const StepState state{.seed = 1, .step = 10, .micro_batch = 1, .micro_batches = 4};
  SelectBench b(200, 120, true);
  const auto set = b.choose(scores, state);
  b.choose(scores, {.seed = 1, .step = 11});
  CHECK(b.choose(scores, state) == set);
  CHECK(SelectBench(200, 120, true, 0, 1).choose(scores, state) == set);
  CHECK(SelectBench(200, 120, true, 0, 3).choose(scores, state) == set);
  StepState other = state;
  other.seed = 2;
  CHECK(b.choose(scores, other) != set);
  other = state;
  other.step = 12;
  CHECK(b.choose(scores, other) != set);
  other = state;
  other.micro_batch = 2;
  CHECK(b.choose(scores, other) != set);
  CHECK(SelectBench(200, 120, true, 1).choose(scores, state) != set);
  (void)make_cpu_backend({.threads = 2});
}

TEST_CASE("greedy takes the largest scores, ties by lower index") {
  SelectBench b(7, 4, false);
  CHECK(b.choose({1, 5, 2, 5, 2, 2, 0}) == std::vector<std::int32_t>{1, 2, 3, 4});
  CHECK(b.choose({0, 0, 0, 0, 0, 0, 0}) == std::vector<std::int32_t>{0, 1, 2, 3});
  CHECK(b.choose({1e-30f, 0, 0, 0, 3e38f, 1, 2}) == std::vector<std::int32_t>{0, 4, 5, 6});
  std::vector<float> scores = random_values<float>(7, 2);
  for (float& s : scores) s = std::abs(s);
  auto expected = std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6};
  std::sort(expected.begin(), expected.end(), [&](int x, int y) { return scores[static_cast<std::size_t>(x)] > scores[static_cast<std::size_t>(y)]; });
  expected.resize(4);
  std::sort(expected.begin(), expected.end());
  CHECK(b.choose(scores) == expected);
}

TEST_CASE("a score that is not finite is counted, never picked in silence") {
  for (const bool sketch : {false, true})
    for (const float bad : {std::nanf(""), INFINITY, -1.f}) {
      SelectBench b(6, 4, sketch);
      b.choose({1, 2, 3, 4, 5, 6});
      CHECK(b.read<StepResult>("result", 1)[0].bad_scores == 0);
      b.choose({1, 2, bad, 4, 5, 6});
      CHECK(b.read<StepResult>("result", 1)[0].bad_scores == 1);
    }
}

TEST_CASE("selection refuses sizes that cannot be") {
  Bench b;
  const Tensor scores = b.input("scores", {10}, DType::f32), state = b.input("state", {sizeof(StepState)}, DType::u8),
               result = b.input("result", {sizeof(StepResult)}, DType::u8);
  CHECK(error_of([&] { select_top_k(scores, result, 0); }).find("[select_top_k] k must be in 1..10, got 0") != std::string::npos);
  CHECK(error_of([&] { select_top_k(scores, result, 11); }).find("got 11") != std::string::npos);
  CHECK(error_of([&] { select_sketch(scores, state, result, 3, 0.4, 0, 0); }).find("min_probability must be in 0..k/n") != std::string::npos);
}
