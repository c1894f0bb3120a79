#include "bench.h"

#include <algorithm>

#include "relume/train/device_facts.h"

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

DeviceRates rates_for(const BenchArguments& a, Config& c, Backend& backend) {
  const DeviceRates rates = device_rates(c, backend, read_environment().cache);
  if (!c.remat.automatic()) return rates;
  c.memory.budget = kUnlimited;
  const RematPlanner planner(c, backend.kernels(), rates);
  c.memory.budget = planner.persistent_bytes() + static_cast<std::int64_t>(a.activations * static_cast<double>(planner.store_arena_bytes()));
  return rates;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

}  // namespace relume::tools
