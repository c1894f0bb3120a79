#include "relume/train/step_bench.h"

#include <chrono>
#include <random>

namespace relume {

StepBench::StepBench(const Config& config, Backend& backend, const DeviceRates& rates)
    : config_(config), program_(make_program(config, backend.kernels(), rates)), memory_(backend) {
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

}  // namespace relume
