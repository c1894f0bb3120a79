// f32 and bf16 kernels of every instruction set against the f64 ones, on odd sizes and in place.
#include <functional>

#include "relume/ops/ops.h"
#include "relume/base/selection.h"
#include "support.h"

using namespace relume;
using namespace relume::test;

namespace {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> found;
  for (const char* isa : {"baseline", "avx2", "avx512", "avx512_bf16"}) {
    try {
      (void)make_cpu_backend({.isa = isa});
      found.emplace_back(isa);
    } catch (const Error&) {  // this processor or build lacks it
    }
  }
  if (cuda_devices() > 0) found.emplace_back("cuda");
  return found;
}

std::unique_ptr<Backend> backend_of(const std::string& isa) { return isa == "cuda" ? make_cuda_backend() : make_cpu_backend({.isa = isa}); }

using Record = std::function<std::vector<Tensor>(Bench&, const std::vector<Tensor>&)>;

/// Outputs, and gradients for random output gradients, of a recording on given inputs; beside bf16, vectors are f32.
std::vector<std::vector<double>> evaluate(DType dtype, const std::string& isa, const std::vector<Shape>& shapes, const Record& record) {
  Bench b(backend_of(isa));
  std::vector<Tensor> inputs;
  const auto dtype_of = [&](std::size_t i) { return shapes[i].rank() == 1 ? accumulation_dtype(dtype) : dtype; };
  for (std::size_t i = 0; i < shapes.size(); ++i) inputs.push_back(b.parameter("in" + std::to_string(i), shapes[i], dtype_of(i)));
  const std::vector<Tensor> outputs = record(b, inputs);
  std::vector<std::pair<Tensor, Tensor>> given;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    given.emplace_back(outputs[i], b.input("dout" + std::to_string(i), outputs[i].shape(), outputs[i].dtype()));
    b.keep(outputs[i], "out" + std::to_string(i));
  }
  const bool differentiable = b.tape.nodes()[static_cast<std::size_t>(b.tape.values()[static_cast<std::size_t>(outputs[0].id)].producer)].op->vjp;
  if (differentiable) b.tape.backward(given);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (const Tensor g = b.tape.gradient(inputs[i])) b.keep(g, "grad" + std::to_string(i));
  b.start();
  for (std::size_t i = 0; i < shapes.size(); ++i)
    b.write_as(dtype_of(i), "in" + std::to_string(i), coarse_values(shapes[i].elements(), 5 + static_cast<unsigned>(i)));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    b.write_as(outputs[i].dtype(), "dout" + std::to_string(i), coarse_values(outputs[i].shape().elements(), 50 + static_cast<unsigned>(i)));
  b.run();
  std::vector<std::vector<double>> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) results.push_back(b.read_as(outputs[i].dtype(), "out" + std::to_string(i), outputs[i].shape().elements()));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::int64_t n = shapes[i].elements();
    results.push_back(b.read_as(accumulation_dtype(dtype), "d in" + std::to_string(i), n));
    const std::string gradient = "grad" + std::to_string(i);
    if (b.memory().has(gradient)) results.push_back(b.read_as(b.tape.gradient(inputs[i]).dtype(), gradient, n));
  }
  return results;
}

void compare(const std::string& what, const std::vector<Shape>& shapes, const Record& record, double tolerance = 2e-6) {
  const auto expected = evaluate(DType::f64, "", shapes, record);
  for (const std::string& isa : instruction_sets())
    for (const auto& [dtype, limit] : {std::pair{DType::f32, tolerance}, std::pair{DType::bf16, 8e-3}}) {
      const auto got = evaluate(dtype, isa, shapes, record);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO(what << ", " << isa << ", " << to_string(dtype) << ", result " << i);
        CHECK(relative_error(got[i], expected[i]) < limit);
      }
    }
}

}  // namespace

TEST_CASE("f32 and bf16 kernels of every instruction set agree with f64") {
  for (std::int64_t n : {1, 3, 17, 65}) {
    compare("rms_norm", {{n, 131}, {131}}, [](Bench&, const auto& in) { return std::vector{rms_norm(in[0], in[1], 1e-5)}; });
    compare("swiglu", {{n, 2 * 77}}, [](Bench&, const auto& in) { return std::vector{swiglu(in[0])}; });
    compare("linear", {{n, 33}, {50, 33}}, [](Bench&, const auto& in) { return std::vector{linear(in[0], in[1])}; });
    compare("project with a residual", {{n, 33}, {33, 50}, {n, 50}}, [](Bench&, const auto& in) { return std::vector{project(in[0], in[1], in[2])}; });
    compare("scale_components", {{n, 3 * 17}, {3}}, [](Bench&, const auto& in) { return std::vector{scale_components(in[0], in[1], 17)}; });
    compare("component_scores", {{n, 3 * 17}, {3 * 17, 21}}, [](Bench&, const auto& in) { return std::vector{component_scores(in[0], in[1], 17)}; });
  }
}

TEST_CASE("products whose operands are packed or turned agree with f64") {
  // Large enough for packing: m >= 128, n a multiple of 64, the depth of 16 words; beside them sizes that just miss it.
  for (const auto& [m, n, k] : {std::tuple{128, 64, 32}, std::tuple{144, 192, 96}, std::tuple{130, 64, 32}, std::tuple{128, 64, 48}, std::tuple{128, 96, 32}, std::tuple{127, 128, 128}}) {
    INFO(m << " x " << n << " x " << k);
    compare("linear", {{m, k}, {n, k}}, [](Bench&, const auto& in) { return std::vector{linear(in[0], in[1])}; });
    compare("project with a residual", {{m, k}, {k, n}, {m, n}}, [](Bench&, const auto& in) { return std::vector{project(in[0], in[1], in[2])}; });
    compare("gradient of a weight", {{k, m}, {n, m}}, [](Bench&, const auto& in) { return std::vector{linear(in[0], in[1])}; });
  }
}

TEST_CASE("flash attention agrees with the definition for any length, head size and grouping") {
  struct Layout {
    std::int64_t sequences;
    AttentionLayout l;
  };
  for (const Layout& c : {Layout{1, {1, 1, 1, 2}}, Layout{2, {5, 2, 2, 6}}, Layout{1, {63, 2, 1, 16}}, Layout{1, {64, 1, 1, 64}}, Layout{2, {65, 3, 3, 40}},
                          Layout{1, {130, 4, 2, 32}}, Layout{1, {200, 2, 2, 128}}, Layout{1, {70, 6, 2, 96}}}) {
    const std::int64_t rows = c.sequences * c.l.tokens, columns = (c.l.heads + 2 * c.l.kv_heads) * c.l.head_dim;
    compare("attention of " + std::to_string(c.l.tokens) + " tokens, head " + std::to_string(c.l.head_dim), {{rows, columns}},
            [&](Bench&, const auto& in) { return std::vector{attention(in[0], c.l)}; }, 5e-6);
  }
}

TEST_CASE("attention to a cache, token by token or in parts, is attention to the whole sequence") {
  const std::int64_t tokens = 150, columns = 6 * 24;
  const AttentionLayout whole{tokens, 4, 1, 24};
  Bench exact(make_cpu_backend());
  exact.keep(attention(exact.parameter("qkv", {tokens, columns}, DType::f64), whole), "out");
  exact.start();
  const std::vector<double> values = coarse_values(tokens * columns, 9);
  exact.write_as(DType::f64, "qkv", values);
  exact.run();
  const std::vector<double> expected = exact.read_as(DType::f64, "out", tokens * 96);
  for (const std::string& isa : instruction_sets())
    for (const auto& [dtype, limit] : {std::pair{DType::f32, 2e-6}, std::pair{DType::bf16, 8e-3}})
      for (const std::int64_t part : {1, 7}) {
        Bench b(backend_of(isa));
        const Tensor state = b.tape.persistent("state", {sizeof(StepState)}, DType::u8, Role::kInput);
        const Tensor cache = b.tape.persistent("cache", {tokens, 2 * 24}, dtype, Role::kInput);
        b.keep(cached_attention(b.parameter("qkv", {part, columns}, dtype), state, cache, {part, 4, 1, 24}), "out");
        b.start();
        std::vector<double> got;
        for (std::int64_t at = 0; at < tokens; at += part) {  // the last part runs over the end
          std::vector<double> rows(values.begin() + at * columns, values.begin() + std::min(at + part, tokens) * columns);
          rows.resize(static_cast<std::size_t>(part * columns));
          b.write_as(dtype, "qkv", rows);
          const StepState s{.position = at};
          b.memory().write("state", &s, 1);
          b.run();
          const auto out = b.read_as(dtype, "out", part * 96);
          got.insert(got.end(), out.begin(), out.end());
        }
        const std::vector<double> past(got.begin() + tokens * 96, got.end());
        CHECK(past == std::vector<double>(past.size(), 0.0));
        got.resize(expected.size());
        INFO(isa << ", " << to_string(dtype) << ", " << part << " at a time");
        CHECK(relative_error(got, expected) < limit);
      }
}

TEST_CASE("flash attention survives large scores") {
  Bench b;
  const AttentionLayout l{70, 1, 1, 16};
  const Tensor qkv = b.parameter("qkv", {70, 48}, DType::f32), out = attention(qkv, l);
  b.keep(out, "out");
  b.start();
  auto values = random_values<float>(70 * 48, 3, 100.0);  // scores of the order of 1e4: one key takes all
  b.write("qkv", values);
  b.run();
  for (float x : b.read<float>("out", 70 * 16)) CHECK(std::isfinite(x));
}

TEST_CASE("a kernel's sums do not depend on the number of threads") {
  const auto all = [](int threads) {
    std::vector<std::vector<float>> results;
    Bench b({.threads = threads});
    const Tensor x = b.parameter("x", {77, 96}, DType::f32), w = b.parameter("w", {96}, DType::f32), m = b.parameter("m", {96, 40}, DType::f32);
    const Tensor y = rms_norm(x, w, 1e-5);
    b.keep(component_scores(y, m, 8), "scores");
    b.keep(sum_of_squares(x), "squares");
    b.keep(attention(x, {7, 2, 1, 24}), "attention");
    b.tape.backward({{y, b.input("dy", {77, 96}, DType::f32)}});
    b.start();
    for (const auto& [name, n] : {std::pair{"x", 77 * 96}, std::pair{"w", 96}, std::pair{"m", 96 * 40}, std::pair{"dy", 77 * 96}})
      b.write(name, random_values<float>(n, 11));
    b.run();
    results.push_back(b.read<float>("scores", 12));
    results.push_back(b.read<float>("attention", 77 * 48));
    results.push_back(b.read<float>("d w", 96));
    const double squares = b.read<double>("squares", 1)[0];
    results.push_back({static_cast<float>(squares), static_cast<float>(squares - static_cast<float>(squares))});
    return results;
  };
  const auto one = all(1);
  for (int threads : {2, 3, 5}) CHECK(all(threads) == one);
  (void)make_cpu_backend({.threads = 2});  // leave the process as other cases expect it
}
