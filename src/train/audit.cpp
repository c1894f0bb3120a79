#include "relume/train/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "relume/base/error.h"
#include "relume/train/checkpoint.h"
#include "relume/train/data_loader.h"
#include "relume/train/program.h"
#include "relume/train/selection_audit.h"

namespace relume {

namespace {

using Vector = std::vector<float>;
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A value as floats.
Vector to_floats(Backend& backend, const TensorView& view) {
  std::vector<std::byte> bytes(at(view.bytes()));
  backend.copy_to_host(bytes.data(), view.data, view.bytes());
  Vector floats(at(view.shape.elements()));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (view.dtype == DType::bf16) {
      std::uint16_t upper;
      std::memcpy(&upper, bytes.data() + 2 * i, 2);
      floats[i] = std::bit_cast<float>(static_cast<std::uint32_t>(upper) << 16);
    } else {
      std::memcpy(&floats[i], bytes.data() + 4 * i, 4);
    }
  }
  return floats;
}

/// Where a planned value is made: tick and output.
struct Place {
  std::size_t tick, output;
};

Place place_of(const Recording& r, int value) {
  const int node = r.tape->values()[at(value)].producer;
  const auto& outputs = r.tape->nodes()[at(node)].out;
  const auto planned = std::find_if(r.plan.nodes.begin(), r.plan.nodes.end(), [&](const PlannedNode& n) { return n.node == node; });
  return {at(planned - r.plan.nodes.begin()), at(std::find(outputs.begin(), outputs.end(), value) - outputs.begin())};
}

/// Input and incoming gradient of every block, of every batch.
struct Captured {
  Vector x, dy;
};

Recording planned(std::unique_ptr<Tape> tape, const KernelTable& kernels) {
  Plan plan = make_plan(*tape, kernels);
  return {std::move(tape), std::move(plan)};
}

/// The whole model: runs batches under store and keeps what every block got.
class Model {
 public:
  Model(const Config& c, Backend& backend, const AuditOptions& options)
      : config_(c), layout_(make_parameter_layout(c.model)), shape_{.sequences = c.batch.micro_batch_size, .tokens = c.data.sequence_length,
        .head_chunk_rows = std::min(kSmallestHeadChunk, c.micro_batch_tokens()), .dtype = c.precision == "bf16" ? DType::bf16 : DType::f32}, memory_(backend) {
    auto tape = std::make_unique<Tape>();
    Llama llama(*tape, c.model, layout_, shape_);
    tape->backward(llama.loss(llama.forward(RematConfig{})));
    recording_ = planned(std::move(tape), backend.kernels());
    memory_.add(*recording_.tape, recording_.plan);
    memory_.allocate();
    const auto table = rope_table(c.model, c.data.sequence_length);
    memory_.write(names::kRopeTable, table.data(), std::ssize(table));
    if (!options.from.empty())
      load_weights(options.from, layout_, memory_);
    else if (!c.init.empty())
      load_weights(c.init, layout_, memory_);
    else
      initialize_weights(c, layout_, memory_);
    refresh_derived_weights(layout_, memory_);
  }

  /// For each batch and block (attention and ffn of layer 0, of layer 1, ...).
  std::vector<std::vector<Captured>> capture(std::int64_t batches) {
    DataLoader data(config_.data.train, {config_.data.sequence_length, config_.model.vocab_size, config_.data.shuffle, static_cast<std::uint64_t>(config_.seed)});
    const std::int64_t rows = config_.micro_batch_tokens(), length = config_.data.sequence_length;
    const std::size_t blocks = recording_.tape->blocks().size();
    std::multimap<std::size_t, std::function<void(const std::vector<TensorView>&)>> at_tick;
    std::vector<std::vector<Captured>> captured(at(batches), std::vector<Captured>(blocks));
    std::vector<Captured>* current = nullptr;
    for (std::size_t b = 0; b < blocks; ++b) {
      const Block& block = recording_.tape->blocks()[b];
      const Place x = place_of(recording_, block.in.id), dy = place_of(recording_, recording_.tape->gradient(block.out).id);
      at_tick.emplace(x.tick, [&, b, x](const auto& out) { (*current)[b].x = to_floats(memory_.backend(), out[x.output]); });
      at_tick.emplace(dy.tick, [&, b, dy](const auto& out) { (*current)[b].dy = to_floats(memory_.backend(), out[dy.output]); });
    }
    Executor executor(*recording_.tape, recording_.plan, memory_);
    executor.watch([&](std::size_t tick, const auto&, const auto& out) {
      for (auto [it, end] = at_tick.equal_range(tick); it != end; ++it) it->second(out);
    });
    std::vector<std::int32_t> tokens(at(rows)), targets(at(rows));
    for (auto& batch : captured) {
      for (std::int64_t s = 0; s < config_.batch.micro_batch_size; ++s) data.next(tokens.data() + s * length, targets.data() + s * length);
      const StepState state{.inverse_targets = 1 / static_cast<double>(rows)};
      const StepResult clear{};
      memory_.write(names::kState, &state, 1);
      memory_.write(names::kResult, &clear, 1);
      memory_.write(names::kTokens, tokens.data(), rows);
      memory_.write(names::kTargets, targets.data(), rows);
      current = &batch;
      executor.run_micro_batch();
    }
    return captured;
  }

  [[nodiscard]] const GraphShape& shape() const { return shape_; }

  /// One matrix or norm of a layer.
  Vector parameter(const std::string& name) const {
    for (const Parameter& p : layout_.parameters)
      if (p.name == name) {
        Vector v(at(p.shape.elements()));
        memory_.backend().copy_to_host(v.data(), memory_.persistent(names::kParameters) + p.offset * 4, std::ssize(v) * 4);
        return v;
      }
    throw Error(ErrorCode::kRuntime, "[audit] no parameter " + name);
  }

 private:
  const Config& config_;
  ParameterLayout layout_;
  GraphShape shape_;
  Recording recording_;
  Memory memory_;
};

/// What one run of a block gave.
struct Gradients {
  Vector matrices, dx;  ///< dx without the residual path
  double seconds = 0;
};

/// One block of one layer under every policy, as tapes of their own on a model of one layer.
class BlockBench {
 public:
  BlockBench(const Config& c, const GraphShape& full, Backend& backend, std::string kind, const std::vector<BlockPolicy>& policies)
      : model_(one_layer(c.model)), layout_(make_parameter_layout(model_)), kind_(std::move(kind)), dtype_(full.dtype), memory_(backend) {
    GraphShape shape = full;
    shape.keep_scores = true;
    for (const BlockPolicy& policy : policies) {
      auto tape = std::make_unique<Tape>();
      Llama llama(*tape, model_, layout_, shape);
      const Shape rows{shape.sequences * shape.tokens, model_.hidden_size};
      const Tensor x = tape->persistent("audit x", rows, shape.dtype, Role::kInput), dy = tape->persistent("audit dy", rows, shape.dtype, Role::kInput);
      const std::int64_t components = score_range(model_, 0, kind_).count;
      const Tensor y = llama.block(0, kind_, x, [&](std::int64_t, const std::string& block, const SelectionContext& context, BlockSpec& spec) {
        apply(decide(policy, block, components), context, spec);
      });
      tape->backward({{y, dy}});
      const Tensor dx = tape->gradient(x);
      tape->keep_result(dx);
      recordings_.push_back(planned(std::move(tape), backend.kernels()));
      dx_.push_back(dx.id);
      memory_.add(*recordings_.back().tape, recordings_.back().plan);
    }
    memory_.allocate();
    const auto table = rope_table(model_, full.tokens);
    memory_.write(names::kRopeTable, table.data(), std::ssize(table));
    for (std::size_t i = 0; i < recordings_.size(); ++i) {
      executors_.push_back(std::make_unique<Executor>(*recordings_[i].tape, recordings_[i].plan, memory_));
      const Place dx = place_of(recordings_[i], dx_[i]);
      executors_.back()->watch([this, dx](std::size_t tick, const auto&, const auto& out) {
        if (tick == dx.tick) dx_now_ = to_floats(memory_.backend(), out[dx.output]);
      });
    }
  }

  void load_layer(const Model& model, std::int64_t layer) {
    for (const Parameter& p : layout_.parameters) {
      if (!p.name.starts_with("layers.0.")) continue;
      const Vector v = model.parameter(fmt::format("layers.{}.{}", layer, p.name.substr(9)));
      memory_.backend().copy_to_device(memory_.persistent(names::kParameters) + p.offset * 4, v.data(), std::ssize(v) * 4);
    }
    refresh_derived_weights(layout_, memory_);
  }

  void set_input(const Captured& c) {
    write("audit x", c.x);
    write("audit dy", c.dy);
    dy_ = &c.dy;
  }

  Gradients run(std::size_t policy, std::int64_t draw, std::int64_t seed) {
    const StepState state{.seed = static_cast<std::uint64_t>(seed), .step = draw, .inverse_targets = 1};
    const StepResult clear{};
    memory_.write(names::kState, &state, 1);
    memory_.write(names::kResult, &clear, 1);
    for (const Parameter* p : matrices()) {
      const Vector zeros(at(p->shape.elements()), 0.f);
      memory_.backend().copy_to_device(memory_.persistent(names::kGradients) + p->offset * 4, zeros.data(), std::ssize(zeros) * 4);
    }
    const auto start = std::chrono::steady_clock::now();
    executors_[policy]->run_micro_batch();
    Gradients g{.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
    for (const Parameter* p : matrices()) {
      const std::size_t before = g.matrices.size();
      g.matrices.resize(before + at(p->shape.elements()));
      memory_.backend().copy_to_host(g.matrices.data() + before, memory_.persistent(names::kGradients) + p->offset * 4, p->shape.elements() * 4);
    }
    g.dx = std::move(dx_now_);
    for (std::size_t i = 0; i < g.dx.size(); ++i) g.dx[i] -= (*dy_)[i];
    return g;
  }

  [[nodiscard]] Vector scores() const {
    const ScoreRange range = score_range(model_, 0, kind_);
    Vector all(at(range.offset + range.count));
    memory_.read(names::kScores, all.data(), std::ssize(all));
    return {all.begin() + range.offset, all.end()};
  }

  [[nodiscard]] double flops(std::size_t policy) const {
    double sum = 0;
    for (const PlannedNode& n : recordings_[policy].plan.nodes) sum += n.cost.flops;
    return sum;
  }

  [[nodiscard]] std::int64_t components() const { return score_range(model_, 0, kind_).count; }

  /// Squared norm of each component's rows of a gradient that run() gave: component-major matrices, each in equal segments.
  [[nodiscard]] std::vector<double> component_energy(const Vector& gradient) const {
    const std::int64_t n = components(), hd = model_.head_size(), per_group = model_.num_attention_heads / model_.kv_heads();
    const std::vector<std::vector<std::int64_t>> segments =  // rows of a component in each segment of each matrix
        kind_ == "attention" ? std::vector<std::vector<std::int64_t>>{{per_group * hd, hd, hd}, {per_group * hd}}
                             : std::vector<std::vector<std::int64_t>>{{1, 1}, {1}};
    std::vector<double> energy(at(n), 0.0);
    const float* row = gradient.data();
    for (const auto& matrix : segments)
      for (std::int64_t rows : matrix)
        for (std::int64_t j = 0; j < n; ++j)
          for (std::int64_t i = 0; i < rows * model_.hidden_size; ++i, ++row) energy[at(j)] += static_cast<double>(*row) * static_cast<double>(*row);
    return energy;
  }

 private:
  static ModelConfig one_layer(ModelConfig m) {
    m.num_hidden_layers = 1;
    m.vocab_size = 1;
    return m;
  }

  /// The block's matrices in the order of component_energy().
  [[nodiscard]] std::vector<const Parameter*> matrices() const {
    std::vector<const Parameter*> found;
    const bool attention = kind_ == "attention";
    for (const char* name : {attention ? "layers.0.qkv" : "layers.0.gate_up", attention ? "layers.0.o" : "layers.0.down"})
      for (const Parameter& p : layout_.parameters)
        if (p.name == name) found.push_back(&p);
    return found;
  }

  void write(const char* name, const Vector& v) {
    if (dtype_ == DType::f32) return memory_.write(name, v.data(), std::ssize(v));
    std::vector<std::uint16_t> upper(v.size());  // exact: the values were bf16
    for (std::size_t i = 0; i < v.size(); ++i) upper[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v[i]) >> 16);
    memory_.write(name, upper.data(), std::ssize(upper));
  }

  ModelConfig model_;
  ParameterLayout layout_;
  std::string kind_;
  DType dtype_;
  Memory memory_;
  std::vector<Recording> recordings_;
  std::vector<int> dx_;
  std::vector<std::unique_ptr<Executor>> executors_;
  Vector dx_now_;
  const Vector* dy_ = nullptr;
};

double squared(const Vector& a) { return std::transform_reduce(a.begin(), a.end(), 0.0, std::plus<>(), [](float x) { return static_cast<double>(x) * static_cast<double>(x); }); }

double squared_difference(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - static_cast<double>(b[i])) * (static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double mean(const std::vector<double>& v) { return v.empty() ? 0 : std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size()); }

double standard_error(const std::vector<double>& v) {
  if (v.size() < 2) return 0;
  double sum = 0;
  for (double x : v) sum += (x - mean(v)) * (x - mean(v));
  return std::sqrt(sum / static_cast<double>(v.size() - 1) / static_cast<double>(v.size()));
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + std::ssize(v) / 2, v.end());
  return v[v.size() / 2];
}

/// Draws of one gradient against the exact one, for one batch.
class Draws {
 public:
  explicit Draws(const Vector& exact) : exact_(exact), norm_(squared(exact)), mean_(exact.size(), 0.0) {}

  void add(const Vector& g) {
    errors_.push_back(squared_difference(g, exact_) / norm_);
    cosines_.push_back(dot(g, exact_) / std::sqrt(norm_ * squared(g)));
    for (std::size_t i = 0; i < g.size(); ++i) mean_[i] += static_cast<double>(g[i]);
  }
  [[nodiscard]] double error() const { return mean(errors_); }
  [[nodiscard]] double cosine() const { return mean(cosines_); }
  /// |mean - exact|^2 over what the mean of independent unbiased draws would have.
  [[nodiscard]] double bias_ratio() const {
    const double draws = static_cast<double>(errors_.size());
    double off = 0;
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      const double d = mean_[i] / draws - static_cast<double>(exact_[i]);
      off += d * d;
    }
    return error() > 0 ? off / norm_ / (error() / draws) : 1;
  }

 private:
  const Vector& exact_;
  double norm_;
  std::vector<double> mean_, errors_, cosines_;
};

/// Measures one block under one policy, given its exact gradients on every batch.
class Measurement {
 public:
  Measurement(BlockBench& bench, const std::vector<std::vector<Captured>>& captured, std::size_t block, const AuditOptions& options, std::int64_t seed)
      : bench_(bench), captured_(captured), block_(block), options_(options), seed_(seed) {
    for (const auto& batch : captured) {
      bench_.set_input(batch[block]);
      exact_.push_back(bench_.run(0, 0, seed));
      exact_s_.push_back(exact_.back().seconds);
    }
    const std::size_t size = exact_[0].matrices.size();
    const double batches = static_cast<double>(exact_.size());
    scale_.assign(size, 0.f);
    for (std::size_t i = 0; i < size; ++i) {
      double sum = 0, squares = 0;
      for (const Gradients& g : exact_) {
        sum += static_cast<double>(g.matrices[i]);
        squares += static_cast<double>(g.matrices[i]) * static_cast<double>(g.matrices[i]);
      }
      const double variance = (squares - sum * sum / batches) / (batches - 1), v = squares / batches;
      scale_[i] = v > 0 ? static_cast<float>(1 / v) : 0.f;
      batch_noise_ += v > 0 ? variance / v : 0;
    }
  }

  AuditRow measure(std::size_t index, const BlockPolicy& policy) {
    AuditRow row{.policy = policy.policy, .fraction = policy.fraction, .components = bench_.components()};
    row.k = std::llround(policy.fraction * static_cast<double>(row.components));
    const bool random = policy.policy == "sketch";
    std::vector<double> cosine, error, dx_cosine, dx_error, bias, dx_bias, theory, noise, times, probability(at(row.components), 0.0);
    for (std::size_t b = 0; b < captured_.size(); ++b) {
      bench_.set_input(captured_[b][block_]);
      Draws draws(exact_[b].matrices), dx_draws(exact_[b].dx);
      for (std::int64_t r = 0; r < (random ? options_.draws : 1); ++r) {
        const Gradients g = bench_.run(index, r * std::ssize(captured_) + static_cast<std::int64_t>(b), seed_);
        draws.add(g.matrices);
        dx_draws.add(g.dx);
        times.push_back(g.seconds);
        double weighted = 0;
        for (std::size_t i = 0; i < g.matrices.size(); ++i) {
          const double d = static_cast<double>(g.matrices[i]) - static_cast<double>(exact_[b].matrices[i]);
          weighted += d * d * static_cast<double>(scale_[i]);
        }
        noise.push_back(weighted);
      }
      cosine.push_back(draws.cosine());
      error.push_back(draws.error());
      dx_cosine.push_back(dx_draws.cosine());
      dx_error.push_back(dx_draws.error());
      // A deterministic policy draws the same every time: its mean is as far off as one draw.
      bias.push_back(random ? draws.bias_ratio() : static_cast<double>(options_.draws));
      dx_bias.push_back(random ? dx_draws.bias_ratio() : static_cast<double>(options_.draws));
      const SelectionQuality q = selection_quality(bench_.scores(), policy);
      const std::vector<double> energy = bench_.component_energy(exact_[b].matrices);
      double off = 0;
      for (std::size_t j = 0; j < energy.size(); ++j) {
        off += q.probability[j] > 0 ? (1 / q.probability[j] - 1) * energy[j] : energy[j];
        probability[j] += q.probability[j] / static_cast<double>(captured_.size());
      }
      theory.push_back(off / std::accumulate(energy.begin(), energy.end(), 0.0));
    }
    row.cosine = mean(cosine);
    row.relative_error = std::sqrt(mean(error));
    row.dx_cosine = mean(dx_cosine);
    row.dx_relative_error = std::sqrt(mean(dx_error));
    row.bias_ratio = mean(bias);
    row.bias_ratio_error = standard_error(bias);
    row.dx_bias_ratio = mean(dx_bias);
    row.variance = random ? mean(error) : 0;
    row.theory_variance = mean(theory);
    row.adam_noise = batch_noise_ > 0 ? mean(noise) / batch_noise_ : 0;
    for (double p : probability) {
      row.never += p < 0.02;
      row.always += p > 0.98;
    }
    row.never /= static_cast<double>(row.components);
    row.always /= static_cast<double>(row.components);
    row.flops_saved = 1 - bench_.flops(index) / bench_.flops(0);
    row.time_saved = 1 - median(times) / median(exact_s_);
    return row;
  }

 private:
  BlockBench& bench_;
  const std::vector<std::vector<Captured>>& captured_;
  std::size_t block_;
  const AuditOptions& options_;
  std::int64_t seed_;
  std::vector<Gradients> exact_;
  std::vector<double> exact_s_;
  Vector scale_;  // 1 / mean squared gradient
  double batch_noise_ = 0;
};

}  // namespace

AuditResult audit(const Config& config, Backend& backend, const AuditOptions& options, const std::function<void(double)>& progress) {
  Config c = config;
  c.precision = resolve_precision(c.precision, backend.device());
  if (options.sequences > 0) c.batch.micro_batch_size = options.sequences;
  c.batch.tokens_per_step = 0;
  if (c.data.train.empty()) throw Error(ErrorCode::kConfig, "data.train: missing; the audit runs on batches of it");
  if (options.batches < 2 || options.draws < 2) throw Error(ErrorCode::kUsage, "the audit needs at least 2 batches and 2 draws");
  std::vector<BlockPolicy> policies{{.policy = "exact"}};
  for (const std::string& policy : options.policies)
    for (double fraction : options.fractions) policies.push_back({.policy = policy, .fraction = fraction, .min_probability = options.min_probability <= fraction ? options.min_probability : fraction / 2});
  AuditResult result{.weights = options.from.empty() ? (c.init.empty() ? "initial" : c.init) : options.from, .device = backend.device().description,
                     .precision = c.precision, .sequences = c.batch.micro_batch_size, .tokens = c.data.sequence_length, .batches = options.batches,
                     .draws = options.draws};
  Model model(c, backend, options);
  const auto captured = model.capture(options.batches);
  const std::vector<std::string> kinds{"attention", "ffn"};
  const double all = static_cast<double>(2 * c.model.num_hidden_layers);
  double done = 0;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    BlockBench bench(c, model.shape(), backend, kinds[kind], policies);
    for (std::int64_t layer = 0; layer < c.model.num_hidden_layers; ++layer) {
      bench.load_layer(model, layer);
      // Blocks draw from streams of their own: shared offsets would make the errors of all blocks one and the same.
      Measurement measurement(bench, captured, at(2 * layer) + kind, options, c.seed + 1000 * (2 * layer + static_cast<std::int64_t>(kind)));
      for (std::size_t p = 1; p < policies.size(); ++p) {
        AuditRow row = measurement.measure(p, policies[p]);
        row.layer = layer;
        row.block = kinds[kind];
        result.rows.push_back(std::move(row));
      }
      if (progress) progress(++done / all);
    }
  }
  const auto rank = [&](const AuditRow& r) {
    return std::tuple(std::find(options.policies.begin(), options.policies.end(), r.policy) - options.policies.begin(), -r.fraction, r.block, r.layer);
  };
  std::stable_sort(result.rows.begin(), result.rows.end(), [&](const AuditRow& a, const AuditRow& b) { return rank(a) < rank(b); });
  return result;
}

}  // namespace relume
