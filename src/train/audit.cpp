#include "relume/train/audit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "audit_blocks.h"
#include "relume/base/error.h"
#include "relume/train/selection_audit.h"

namespace relume {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

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
  Measurement(BlockBench& bench, const std::vector<std::vector<CapturedBlock>>& captured, std::size_t block, const AuditOptions& options, std::int64_t seed)
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
      for (const BlockGradients& g : exact_) {
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
    row.k = policy.selected(row.components);
    const bool random = policy.policy == "sketch";
    std::vector<double> cosine, error, dx_cosine, dx_error, bias, dx_bias, theory, noise, times, probability(at(row.components), 0.0);
    for (std::size_t b = 0; b < captured_.size(); ++b) {
      bench_.set_input(captured_[b][block_]);
      Draws draws(exact_[b].matrices), dx_draws(exact_[b].dx);
      for (std::int64_t r = 0; r < (random ? options_.draws : 1); ++r) {
        const BlockGradients g = bench_.run(index, r * std::ssize(captured_) + static_cast<std::int64_t>(b), seed_);
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
  const std::vector<std::vector<CapturedBlock>>& captured_;
  std::size_t block_;
  const AuditOptions& options_;
  std::int64_t seed_;
  std::vector<BlockGradients> exact_;
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
  CapturedModel model(c, backend, options);
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
