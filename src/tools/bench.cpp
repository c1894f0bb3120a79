#include "bench.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace relume::tools {

namespace {

ModelConfig model_of(const std::string& shape, std::int64_t tokens) {
  ModelConfig m;
  const auto set = [&](std::int64_t v, std::int64_t d, std::int64_t l, std::int64_t h, std::int64_t f) {
    m.vocab_size = v, m.hidden_size = d, m.num_hidden_layers = l, m.num_attention_heads = h, m.intermediate_size = f;
  };
  if (shape == "11m") set(4096, 256, 8, 4, 768);
  if (shape == "30m") set(8192, 384, 10, 6, 1152);
  if (shape == "488m") set(32000, 1152, 26, 18, 3072);
  m.max_position_embeddings = std::max<std::int64_t>(tokens, 2048);
  return m;
}

}  // namespace

Config config_of(const BenchArguments& a, const DeviceInfo& device) {
  Config c;
  c.model = model_of(a.shape, a.sequence);
  c.data.sequence_length = a.sequence;
  c.batch.micro_batch_size = a.batch;
  c.seed = 0;
  c.precision = resolve_precision(a.precision, device);
  c.optimizer.learning_rate = 1e-3;
  const BlockPolicy policy{.policy = a.recompute, .fraction = a.fraction, .min_probability = std::min(0.35, a.fraction)};
  c.remat.defaults = {policy, policy};
  return c;
}

StepBench::StepBench(const Config& config, Backend& backend)
    : config_(config), program_(make_program(config, backend.kernels())), memory_(backend) {
  memory_.add(*program_.training.tape, program_.training.plan);
  memory_.allocate();
  const auto table = rope_table(config.model, config.data.sequence_length);
  memory_.write(names::kRopeTable, table.data(), static_cast<std::int64_t>(table.size()));
  initialize_weights(config, program_.layout, memory_);
  refresh_derived_weights(program_.layout, memory_);
  executor_.emplace(*program_.training.tape, program_.training.plan, memory_);
}

double StepBench::step(std::int64_t index, double& step_s) {
  const std::int64_t rows = config_.micro_batch_tokens(), length = config_.data.sequence_length;
  std::mt19937 random(static_cast<unsigned>(index));
  std::uniform_int_distribution<std::int32_t> uniform(0, static_cast<std::int32_t>(config_.model.vocab_size) - 1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows)), targets(tokens.size());
  for (std::int64_t s = 0; s < config_.batch.micro_batch_size; ++s) {
    std::int32_t next = uniform(random);
    for (std::int64_t t = 0; t < length; ++t) {
      tokens[static_cast<std::size_t>(s * length + t)] = next;
      targets[static_cast<std::size_t>(s * length + t)] = next = uniform(random);
    }
  }
  const StepState state{.seed = 1, .step = index, .learning_rate = config_.optimizer.learning_rate, .inverse_targets = 1 / static_cast<double>(rows)};
  const StepResult clear{.updates = index};
  const auto start = std::chrono::steady_clock::now();
  memory_.write(names::kState, &state, 1);
  memory_.write(names::kResult, &clear, 1);
  memory_.write(names::kTokens, tokens.data(), rows);
  memory_.write(names::kTargets, targets.data(), rows);
  executor_->run_micro_batch();
  executor_->run_update();
  StepResult result;
  memory_.read(names::kResult, &result, 1);
  step_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result.nll / static_cast<double>(rows);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

}  // namespace relume::tools
