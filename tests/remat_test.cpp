// Policies: the exact family is bitwise equal to store; greedy and sketch equal PyTorch on the same selections, and the
// sketch is unbiased: its expectation over all outcomes of the draw is the exact gradient.
#include <algorithm>
#include <set>

#include "llama_bench.h"
#include "relume/base/selection.h"

using namespace relume;
using namespace relume::test;

namespace {

const SafetensorsFile& fixture() {
  static const SafetensorsFile file(data_path("remat-tiny.safetensors"));
  return file;
}

RematConfig same_everywhere(const BlockPolicy& attention, const BlockPolicy& ffn, bool keep_mid = true) {
  RematConfig r;
  r.defaults = {attention, ffn, keep_mid};
  return r;
}

void write_fixture_tokens(LlamaBench& b) {
  const auto ids = read_i32(fixture(), "input_ids");
  b.write<std::int32_t>("tokens", ids);
  b.write<std::int32_t>("targets", next_token_targets(ids, 48));
}

/// Gradients of the fixture's batch under a policy.
struct Run {
  std::vector<double> gradient;
  double nll;
  std::int64_t arena_bytes;
};

Run run(const RematConfig& remat, DType dtype = DType::f32) {
  LlamaBench b(tiny_model(), 2, 48, dtype);
  b.record(remat);
  write_fixture_tokens(b);
  b.step(94);
  CHECK(b.plan().arena_bytes == b.plan().lower_bound_bytes);
  CHECK(b.executor().touched_bytes() == b.plan().arena_bytes);
  return {b.flat_gradient(), b.result().nll, b.plan().arena_bytes};
}

BlockPolicy exact(std::vector<std::string> keep) { return {.policy = "exact", .keep = std::move(keep)}; }

using Site = std::pair<std::int64_t, std::string>;  // layer, block kind

std::string name_of(const Site& site) { return std::to_string(site.first) + " " + site.second; }

/// A wrong scale_components: it scales only what comes back, so that the down projection's own gradient lacks the weight.
const OpDef kScaleBackwardOnly{
    "scale_backward_only",
    [](const InferContext& c) -> std::vector<OutputSpec> { return {{.shape = c.shape(0), .dtype = c.dtype(0)}}; },
    [](Vjp& r) { r.add(0, scale_components(r.dout(0), r.in(1), 1)); },
    [](const NodeContext&) { return Cost{}; },
    [](const NodeContext& n) { std::memcpy(n.out[0].data, n.in[0].data, static_cast<std::size_t>(n.in[0].bytes())); },
};

/// The FFN block with that mistake.
BlockBuilder weight_missing_on_down(LlamaBench& b, std::int64_t layer, BlockBuilder exact_block) {
  return [&b, layer, exact_block](Tensor x, const Selection* s) -> BlockRecord {
    if (!s) return exact_block(x, s);
    const auto parameter = [&](const char* name) {
      for (std::size_t v = 0; v < b.tape.values().size(); ++v)
        if (b.tape.values()[v].name == "layers." + std::to_string(layer) + "." + name) return Tensor{&b.tape, static_cast<int>(v)};
      throw Error(ErrorCode::kRuntime, name);
    };
    const Tensor product = swiglu(linear(rms_norm(x, parameter("ffn_norm"), b.model.rms_norm_eps),
                                         gather_components(parameter("gate_up"), s->indices, {2, {1, 1}})));
    const Tensor weighted = b.tape.emit(kScaleBackwardOnly, {product, s->weights})[0];
    return {project(weighted, gather_components(parameter("down"), s->indices, {1, {1}}), x), {}, {}, 1};
  };
}

/// Records with k components given at each site: the test writes them into "index SITE" and "weight SITE".
void record_given(LlamaBench& b, const std::map<Site, std::int64_t>& k, bool spoil_down = false) {
  b.record([&](std::int64_t layer, const std::string& kind, const SelectionContext&, BlockSpec& spec) {
    const auto it = k.find({layer, kind});
    if (it == k.end()) return;
    spec.keep_all = false;
    if (spoil_down) spec.build = weight_missing_on_down(b, layer, spec.build);
    spec.profile = [](const BlockRecord&) { return Tensor{}; };
    spec.select = [&b, name = name_of(it->first), count = it->second](Tensor) {
      return Selection{b.input("index " + name, {count}, DType::i32), b.input("weight " + name, {count}, DType::f32)};
    };
  });
}

}  // namespace

TEST_CASE("every exact policy gives losses and gradients bitwise equal to store") {
  const std::vector<std::string> attention_values = block_value_names("attention"), ffn_values = block_value_names("ffn");
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const Run store = run({}, dtype);
  const auto check = [&](const RematConfig& remat, const char* what) {
    INFO(what << ", " << to_string(dtype));
    const Run r = run(remat, dtype);
    CHECK(r.nll == store.nll);
    CHECK(r.gradient == store.gradient);
    CHECK(r.arena_bytes < store.arena_bytes);
  };
  check(same_everywhere({.policy = "selective"}, {.policy = "selective"}), "selective");
  check(same_everywhere({.policy = "exact"}, {.policy = "store"}), "exact attention");
  check(same_everywhere({.policy = "exact"}, {.policy = "exact"}, false), "whole layer");
  check(same_everywhere(exact({"attn_out"}), exact({"gate_up"}), false), "whole layer but attn_out and gate_up");
  for (unsigned mask = 0; mask < 64; ++mask) {
    std::vector<std::string> a, f;
    for (unsigned i = 0; i < 3; ++i) {
      if (mask >> i & 1) a.push_back(attention_values[i]);
      if (mask >> (i + 3) & 1) f.push_back(ffn_values[i]);
    }
    if (mask == 63) continue;  // keeps what store keeps
    check(same_everywhere(exact(a), exact(f)), ("keep set " + std::to_string(mask)).c_str());
  }
}

TEST_CASE("a policy per layer and block mixes freely and stays bitwise exact") {
  RematConfig remat;
  remat.ranges.push_back({0, 0, {{.policy = "exact"}, {.policy = "store"}}});
  remat.ranges.push_back({1, 1, {{.policy = "selective"}, exact({"gate_up"})}});
  remat.ranges.push_back({2, 2, {{.policy = "exact"}, {.policy = "exact"}, false}});
  CHECK(run(remat).gradient == run({}).gradient);
}

TEST_CASE("scores and water-filled probabilities equal the reference") {
  for (const std::string kind : {"ffn", "attention"}) {
    LlamaBench b(tiny_model(), 2, 48);
    b.record([&](std::int64_t layer, const std::string& k, const SelectionContext& context, BlockSpec& spec) {
      if (k != kind) return;
      spec.keep_all = false;
      spec.profile = [](const BlockRecord& r) { return component_scores(r.components, r.weight, r.columns); };
      spec.select = [&b, layer, context](Tensor scores) {
        const std::int64_t n = scores.shape()[0], k_of_n = std::llround(0.6667 * static_cast<double>(n));
        const auto sketch = select_sketch(scores, context.state, context.result, k_of_n, 0.35, context.layer, context.block);
        b.keep(scores, "scores " + std::to_string(layer));
        b.keep(sketch.probabilities, "p " + std::to_string(layer));
        return sketch.selection;
      };
    });
    write_fixture_tokens(b);
    b.step(94);
    for (int layer = 0; layer < 3; ++layer) {
      const auto expected_scores = read_f32(fixture(), "scores/" + std::to_string(layer) + "/" + kind);
      const auto expected_p = read_f32(fixture(), "p/" + std::to_string(layer) + "/" + kind);
      const auto n = static_cast<std::int64_t>(expected_scores.size());
      CHECK(relative_error(b.read<float>("scores " + std::to_string(layer), n), expected_scores) < 1e-5);
      std::vector<double> p;
      for (std::int32_t x : b.read<std::int32_t>("p " + std::to_string(layer), n)) p.push_back(x * 0x1p-24);
      CHECK(relative_error(p, expected_p) < 1e-4);
    }
  }
}

TEST_CASE("greedy gradients of every parameter equal PyTorch's") {
  const BlockPolicy greedy{.policy = "greedy", .fraction = 0.6667}, store;
  for (const auto& [name, remat] : {std::pair{"greedy_ffn", same_everywhere(store, greedy)},
                                    std::pair{"greedy_attention", same_everywhere(greedy, store)},
                                    std::pair{"greedy_both", same_everywhere(greedy, greedy)}}) {
    LlamaBench b(tiny_model(), 2, 48);
    b.record(remat);
    write_fixture_tokens(b);
    b.step(94);
    for (const auto& [parameter, gradient] : b.hf_gradients()) {
      INFO(name << " " << parameter);
      CHECK(relative_error(gradient, read_f32(fixture(), std::string(name) + "/" + parameter)) < 1e-4);
    }
  }
}

TEST_CASE("sketch gradients of every parameter equal PyTorch's for a given draw") {
  for (const bool both : {false, true}) {
    std::map<Site, std::int64_t> k;
    for (std::int64_t layer = 0; layer < 3; ++layer)
      for (const std::string kind : {"attention", "ffn"})
        if (both || kind == "ffn")
          k[{layer, kind}] = fixture().entries().at("sketch_index/" + std::to_string(layer) + "/" + kind).elements();
    LlamaBench b(tiny_model(), 2, 48);
    record_given(b, k);
    write_fixture_tokens(b);
    for (const auto& [site, count] : k) {
      const std::string from = std::to_string(site.first) + "/" + site.second;
      b.write<std::int32_t>("index " + name_of(site), read_i32(fixture(), "sketch_index/" + from));
      b.write<float>("weight " + name_of(site), read_f32(fixture(), "sketch_weight/" + from));
    }
    b.step(94);
    for (const auto& [parameter, gradient] : b.hf_gradients()) {
      INFO(parameter);
      CHECK(relative_error(gradient, read_f32(fixture(), (both ? "sketch_both/" : "sketch_ffn/") + parameter)) < 1e-4);
    }
  }
}

TEST_CASE("greedy and sketch at fraction 1 give the exact gradient to round-off") {
  const Run store = run({});
  for (const char* policy : {"greedy", "sketch"}) {
    const BlockPolicy all{.policy = policy, .fraction = 1.0};
    const Run r = run(same_everywhere(all, all));
    CHECK(r.nll == store.nll);
    CHECK(relative_error(r.gradient, store.gradient) < 2e-6);
  }
}

// --- expectation ------------------------------------------------------------------------------------------------------------

namespace {

struct Outcome {
  double probability;
  std::vector<std::int32_t> indices;
  std::vector<float> weights;
};

/// All distinct outcomes of a systematic draw: the set changes only at offsets -C_j mod 2^24.
std::vector<Outcome> outcomes(const std::vector<std::int32_t>& p, std::int64_t k) {
  std::set<std::uint64_t> starts{0};
  std::uint64_t sum = 0;
  for (std::int32_t x : p) {
    sum += static_cast<std::uint64_t>(x);
    starts.insert((kDrawUnit - sum % kDrawUnit) % kDrawUnit);
  }
  std::vector<Outcome> result;
  for (auto it = starts.begin(); it != starts.end(); ++it) {
    const std::uint64_t end = std::next(it) == starts.end() ? kDrawUnit : *std::next(it);
    Outcome o{static_cast<double>(end - *it) / static_cast<double>(kDrawUnit), std::vector<std::int32_t>(static_cast<std::size_t>(k)),
              std::vector<float>(static_cast<std::size_t>(k))};
    systematic_draw(p.data(), static_cast<std::int64_t>(p.size()), k, *it, o.indices.data(), o.weights.data());
    result.push_back(std::move(o));
  }
  return result;
}

ModelConfig small_gqa_model() {
  ModelConfig m;
  m.vocab_size = 64, m.hidden_size = 32, m.intermediate_size = 24, m.num_hidden_layers = 3, m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  return m;
}

/// ||E[gradient] - exact|| / ||exact||, the largest over parameters, with the draws of `sites` active together. `mutate`
/// may spoil an outcome's weights.
double expectation_error(const std::vector<Site>& sites, const std::function<void(Outcome&, std::int64_t n)>& mutate = {},
                         bool greedy = false, bool spoil_down = false) {
  const ModelConfig model = small_gqa_model();
  const auto prepare = [](LlamaBench& b) {
    b.initialize_weights(5);
    auto flat = b.read<float>("parameters", b.layout.elements);  // larger weights: attention and FFN that matter
    for (const Parameter& p : b.layout.parameters)
      if (!p.norm)
        for (std::int64_t i = 0; i < p.shape.elements(); ++i) flat[static_cast<std::size_t>(p.offset + i)] *= 10;
    b.write<float>("parameters", flat);
    std::vector<std::int32_t> tokens;
    for (double x : random_values(32, 9)) tokens.push_back(static_cast<std::int32_t>(std::abs(x) * 1000) % 64);
    b.write<std::int32_t>("tokens", tokens);
    b.write<std::int32_t>("targets", next_token_targets(tokens, 16));
  };
  LlamaBench store(model, 2, 16);
  store.record(RematConfig{});
  prepare(store);
  store.step(30);
  const auto exact_gradient = store.hf_gradients();

  std::map<Site, std::int64_t> k;
  std::vector<std::vector<Outcome>> each;
  for (const Site& site : sites) {
    const std::int64_t n = site.second == "ffn" ? 24 : 4, chosen = site.second == "ffn" ? 16 : 2;
    k[site] = chosen;
    std::vector<float> scores;
    for (double x : random_values(n, 40 + static_cast<unsigned>(site.first))) scores.push_back(static_cast<float>(std::exp(x)));
    std::vector<std::int32_t> p(static_cast<std::size_t>(n));
    water_fill(scores.data(), n, chosen, 0.3, p.data());
    each.push_back(outcomes(p, chosen));
    if (greedy) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(n));
      for (std::int64_t j = 0; j < n; ++j) order[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(j);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)]; });
      order.resize(static_cast<std::size_t>(chosen));
      std::sort(order.begin(), order.end());
      each.back() = {Outcome{1.0, order, std::vector<float>(static_cast<std::size_t>(chosen), 1.f)}};
    }
    if (mutate)
      for (Outcome& o : each.back()) mutate(o, n);
  }
  LlamaBench b(model, 2, 16);
  record_given(b, k, spoil_down);
  prepare(b);
  std::map<std::string, std::vector<double>> mean;
  for (const auto& [name, g] : exact_gradient) mean[name].assign(g.size(), 0.0);
  std::vector<std::size_t> at(sites.size(), 0);
  for (bool more = true; more;) {
    double probability = 1;
    for (std::size_t s = 0; s < sites.size(); ++s) {
      const Outcome& o = each[s][at[s]];
      probability *= o.probability;
      b.write("index " + name_of(sites[s]), o.indices);
      b.write("weight " + name_of(sites[s]), o.weights);
    }
    b.step(30);
    for (const auto& [name, g] : b.hf_gradients())
      for (std::size_t i = 0; i < g.size(); ++i) mean[name][i] += probability * static_cast<double>(g[i]);
    more = false;
    for (std::size_t s = 0; s < sites.size() && !more; ++s) {
      more = ++at[s] < each[s].size();
      if (!more) at[s] = 0;
    }
  }
  double worst = 0;
  for (const auto& [name, g] : exact_gradient) worst = std::max(worst, relative_error(mean[name], g));
  return worst;
}

}  // namespace

TEST_CASE("the expectation of a sketched gradient over all outcomes is the exact gradient") {
  for (const std::vector<Site>& sites : {std::vector<Site>{{0, "ffn"}}, std::vector<Site>{{1, "attention"}}, std::vector<Site>{{2, "ffn"}},
                                         std::vector<Site>{{0, "ffn"}, {2, "attention"}}, std::vector<Site>{{1, "attention"}, {1, "ffn"}}})
    CHECK(expectation_error(sites) < 1e-5);
}

TEST_CASE("a biased estimator fails the expectation test") {
  const std::vector<Site> ffn{{0, "ffn"}}, attention{{1, "attention"}};
  CHECK(expectation_error(ffn, {}, true) > 1e-3);        // greedy
  CHECK(expectation_error(attention, {}, true) > 1e-3);
  CHECK(expectation_error(ffn, {}, false, true) > 1e-3);  // no weight on the gradient of the down projection
  const auto uniform = [](Outcome& o, std::int64_t n) {  // weights n/k whatever p was
    for (float& w : o.weights) w = static_cast<float>(n) / static_cast<float>(o.weights.size());
  };
  const auto unweighted = [](Outcome& o, std::int64_t) { std::fill(o.weights.begin(), o.weights.end(), 1.f); };
  const auto squared = [](Outcome& o, std::int64_t) {  // weight applied twice
    for (float& w : o.weights) w *= w;
  };
  for (const auto& mutate : {std::function<void(Outcome&, std::int64_t)>(uniform), std::function<void(Outcome&, std::int64_t)>(unweighted),
                             std::function<void(Outcome&, std::int64_t)>(squared)})
    CHECK(expectation_error(ffn, mutate) > 1e-3);
}
