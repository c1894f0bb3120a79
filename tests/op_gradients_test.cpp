// Gradients of every differentiable op against central differences in f64.
#include <set>

#include "relume/ops/ops.h"
#include "support.h"

using namespace relume;
using namespace relume::test;

namespace {

/// One op under test. `build` gets the inputs in order and returns the outputs whose gradients are given.
struct GradientCase {
  std::string name;
  std::vector<Shape> shapes;             // of the f64 inputs
  std::vector<bool> parameter;           // gradient goes to an accumulator
  std::function<std::vector<Tensor>(Bench&, const std::vector<Tensor>&)> build;
  std::function<void(Bench&)> prepare = {};  // writes other inputs
  std::set<int> constant = {};               // inputs no gradient flows to
};

/// Sum of outputs times fixed random weights, as a function of the inputs.
class Checker {
 public:
  explicit Checker(const GradientCase& c) : case_(c) {
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      const std::string name = "in" + std::to_string(i);
      inputs.push_back(c.parameter[i] ? bench_.parameter(name, c.shapes[i], DType::f64) : bench_.input(name, c.shapes[i], DType::f64));
      values_.push_back(random_values(c.shapes[i].elements(), 17 + static_cast<unsigned>(i)));
    }
    const std::vector<Tensor> outputs = c.build(bench_, inputs);
    std::vector<std::pair<Tensor, Tensor>> given;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      sizes_.push_back(outputs[i].shape().elements());
      given.emplace_back(outputs[i], bench_.input("dout" + std::to_string(i), outputs[i].shape(), DType::f64));
      bench_.keep(outputs[i], "out" + std::to_string(i));
    }
    bench_.tape.backward(given);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (!c.parameter[i] && !c.constant.count(static_cast<int>(i))) bench_.keep(bench_.tape.gradient(inputs[i]), "grad" + std::to_string(i));
    bench_.start();
    if (c.prepare) c.prepare(bench_);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      weights_.push_back(random_values(sizes_[i], 91 + static_cast<unsigned>(i)));
      bench_.write("dout" + std::to_string(i), weights_.back());
    }
  }

  double value() {
    for (std::size_t i = 0; i < values_.size(); ++i) bench_.write("in" + std::to_string(i), values_[i]);
    bench_.run();
    double sum = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const auto out = bench_.read<double>("out" + std::to_string(i), sizes_[i]);
      for (std::size_t j = 0; j < out.size(); ++j) sum += out[j] * weights_[i][j];
    }
    return sum;
  }

  /// Largest relative error over the inputs.
  double error() {
    double worst = 0;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (case_.constant.count(static_cast<int>(i))) continue;
      const std::int64_t n = case_.shapes[i].elements();
      if (case_.parameter[i]) bench_.write("d in" + std::to_string(i), std::vector<double>(static_cast<std::size_t>(n), 0.0));
      value();
      const auto analytic = bench_.read<double>((case_.parameter[i] ? "d in" : "grad") + std::to_string(i), n);
      std::vector<double> numeric;
      for (double& x : values_[i]) {
        const double original = x, h = 1e-5;
        x = original + h;
        const double up = value();
        x = original - h;
        const double down = value();
        x = original;
        numeric.push_back((up - down) / (2 * h));
      }
      worst = std::max(worst, relative_error(analytic, numeric));
    }
    return worst;
  }

 private:
  const GradientCase& case_;
  Bench bench_;
  std::vector<std::vector<double>> values_, weights_;
  std::vector<std::int64_t> sizes_;
};

std::vector<double> table_of(std::int64_t tokens, std::int64_t head_dim) {
  ModelConfig m;
  m.hidden_size = head_dim;
  m.num_attention_heads = 1;
  const auto f = rope_table(m, tokens);
  return {f.begin(), f.end()};
}

std::vector<GradientCase> cases() {
  return {
      {"add", {{3, 4}, {3, 4}}, {false, false}, [](Bench&, const auto& in) { return std::vector{add(in[0], in[1])}; }},
      {"add of one value to itself", {{3, 4}}, {false}, [](Bench&, const auto& in) { return std::vector{add(in[0], in[0])}; }},
      {"embedding with a repeated id", {{5, 6}}, {true},
       [](Bench& b, const auto& in) { return std::vector{embedding(b.input("ids", {4}, DType::i32), in[0])}; },
       [](Bench& b) { b.write<std::int32_t>("ids", {3, 0, 3, 4}); }},
      {"rms_norm", {{35, 6}, {6}}, {false, true}, [](Bench&, const auto& in) { return std::vector{rms_norm(in[0], in[1], 1e-2)}; }},
      {"rms_norm with a residual path", {{3, 6}, {6}}, {false, true},
       [](Bench&, const auto& in) { return std::vector{add(in[0], rms_norm(in[0], in[1], 1e-2))}; }},
      {"linear", {{3, 4}, {5, 4}}, {false, false}, [](Bench&, const auto& in) { return std::vector{linear(in[0], in[1])}; }},
      {"linear into an accumulator", {{3, 4}, {5, 4}}, {false, true}, [](Bench&, const auto& in) { return std::vector{linear(in[0], in[1])}; }},
      {"project", {{3, 4}, {4, 5}}, {false, true}, [](Bench&, const auto& in) { return std::vector{project(in[0], in[1])}; }},
      {"project with a residual", {{3, 4}, {4, 5}, {3, 5}}, {false, false, false},
       [](Bench&, const auto& in) { return std::vector{project(in[0], in[1], in[2])}; }},
      {"rope", {{6, 14}}, {false},
       [](Bench& b, const auto& in) { return std::vector{rope(in[0], b.input("table", {3, 4}, DType::f64), 4, 8)}; },
       [](Bench& b) { b.write("table", table_of(3, 4)); }},
      {"attention", {{10, 24}}, {false}, [](Bench&, const auto& in) { return std::vector{attention(in[0], {5, 2, 2, 4})}; }},
      {"attention with grouped queries", {{6, 32}}, {false}, [](Bench&, const auto& in) { return std::vector{attention(in[0], {3, 4, 2, 4})}; }},
      {"swiglu", {{3, 10}}, {false}, [](Bench&, const auto& in) { return std::vector{swiglu(in[0])}; }},
      {"gather_components of one segment", {{6, 3}}, {true},
       [](Bench& b, const auto& in) { return std::vector{gather_components(in[0], b.input("indices", {2}, DType::i32), {1, {2}})}; },
       [](Bench& b) { b.write<std::int32_t>("indices", {0, 2}); }},
      {"gather_components of three segments", {{16, 3}}, {true},
       [](Bench& b, const auto& in) { return std::vector{gather_components(in[0], b.input("indices", {3}, DType::i32), {3, {2, 1, 1}})}; },
       [](Bench& b) { b.write<std::int32_t>("indices", {0, 1, 3}); }},
      {"scale_components", {{3, 6}, {3}}, {false, false}, [](Bench&, const auto& in) { return std::vector{scale_components(in[0], in[1], 2)}; },
       {}, {1}},
  };
}

}  // namespace

TEST_CASE("gradients of every differentiable op equal central differences in f64") {
  std::set<std::string> covered;
  for (const GradientCase& c : cases()) {
    INFO(c.name);
    Checker checker(c);
    CHECK(checker.error() < 1e-8);
    covered.insert(c.name.substr(0, c.name.find(' ')));
  }
  covered.insert("matmul");  // linear and project
  covered.insert("linear_cross_entropy");  // below
  for (const OpDef* op : kAllOps)
    if (op->vjp) CHECK(covered.count(std::string(op->name)));
}

TEST_CASE("linear_cross_entropy forms loss and gradients, whole or in chunks, with masked targets") {
  const std::int64_t rows = 7, width = 5, vocabulary = 9;
  const std::vector<std::int32_t> targets{3, -100, 0, 8, -100, 4, 4};
  for (std::int64_t chunk : {7, 3, 1}) {
    Bench b;
    const Tensor x = b.input("x", {rows, width}, DType::f64), w = b.parameter("w", {vocabulary, width}, DType::f64);
    const Tensor loss = linear_cross_entropy(x, w, b.input("targets", {rows}, DType::i32), b.input("state", {sizeof(StepState)}, DType::u8),
                                             b.input("result", {sizeof(StepResult)}, DType::u8), chunk);
    b.tape.backward(loss);
    b.keep(b.tape.gradient(x), "dx");
    b.start();
    std::vector<double> xv = random_values(rows * width, 1), wv = random_values(vocabulary * width, 2);
    b.write("targets", targets);
    const StepState state{.inverse_targets = 0.2};
    b.memory().write("state", &state, 1);
    const auto nll = [&] {
      const StepResult zero;
      b.memory().write("result", &zero, 1);
      b.write("d w", std::vector<double>(wv.size(), 0.0));
      b.write("x", xv);
      b.write("w", wv);
      b.run();
      StepResult r;
      b.memory().read("result", &r, 1);
      return r.nll;
    };
    double expected = 0, squared = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      if (targets[static_cast<std::size_t>(i)] < 0) continue;
      double sum = 0, at_target = 0;
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        double z = 0;
        for (std::int64_t c = 0; c < width; ++c) z += xv[static_cast<std::size_t>(i * width + c)] * wv[static_cast<std::size_t>(v * width + c)];
        sum += std::exp(z);
        if (v == targets[static_cast<std::size_t>(i)]) at_target = z;
      }
      expected += std::log(sum) - at_target;
      squared += std::pow(std::log(sum) - at_target, 2);
    }
    CHECK(nll() == Approx(expected).epsilon(1e-12));
    StepResult r;
    b.memory().read("result", &r, 1);
    CHECK(r.nll_squared == Approx(squared).epsilon(1e-12));
    const auto dx = b.read<double>("dx", rows * width), dw = b.read<double>("d w", vocabulary * width);
    const auto numeric = [&](std::vector<double>& values) {
      std::vector<double> g;
      for (double& v : values) {
        const double original = v, h = 1e-5;
        v = original + h;
        const double up = nll();
        v = original - h;
        const double down = nll();
        v = original;
        g.push_back((up - down) / (2 * h) * 0.2);
      }
      return g;
    };
    CHECK(relative_error(dx, numeric(xv)) < 1e-8);
    CHECK(relative_error(dw, numeric(wv)) < 1e-8);
  }
}
