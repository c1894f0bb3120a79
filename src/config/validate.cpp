// What must hold between fields of the config.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "field_visitor.h"
#include "relume/base/error.h"

namespace relume::config {

namespace {

[[noreturn]] void fail(const std::string& origin, const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kConfig, fmt::format("{}: {}: {}", origin, path, message));
}

void check_components(const BlockPolicy& p, std::int64_t n, const char* unit, const std::string& origin, const std::string& path) {
  if (!p.approximate()) return;
  const std::int64_t k = p.selected(n);
  if (k < 1)
    fail(origin, path, fmt::format("fraction {} of {} {} rounds to 0; hint: at least {:.4f} selects one", p.fraction, n, unit,
                                   0.5 / static_cast<double>(n)));
  if (p.policy == "sketch" && p.min_probability * static_cast<double>(n) > static_cast<double>(k))
    fail(origin, path, fmt::format("min_probability {} asks for at least {:.1f} of {} {}, but fraction {} draws {}; hint: min_probability <= {:.4f}",
                                   p.min_probability, p.min_probability * static_cast<double>(n), n, unit, p.fraction, k,
                                   static_cast<double>(k) / static_cast<double>(n)));
}

void check_layer(const LayerPolicy& l, const ModelConfig& m, const std::string& origin, const std::string& path) {
  check_components(l.attention, m.kv_heads(), "attention KV groups", origin, path + ".attention");
  check_components(l.ffn, m.intermediate_size, "FFN neurons", origin, path + ".ffn");
  if (!l.keep_mid && (l.attention.policy != "exact" || l.ffn.policy != "exact"))
    fail(origin, path, "only \"exact\" can recompute a whole layer from its input; greedy and sketch need \"mid\" kept");
}

void check_memory(const Config& c, const std::string& origin) {
  if (c.remat.automatic() && c.memory.budget == 0)
    fail(origin, "memory.budget", "missing; the policy auto needs the bytes to stay within, as \"16GiB\"");
  if (!c.memory.allow.empty() && c.memory.max_variance == 0)
    fail(origin, "memory.max_variance", "missing; approximate policies in memory.allow need a bound above 0 on the error of the gradient, as 0.05");
}

void check_batch(const Config& c, const std::string& origin) {
  const std::int64_t micro = c.micro_batch_tokens(), wanted = c.batch.tokens_per_step;
  if (wanted == 0 || wanted % micro == 0) return;
  const std::int64_t below = wanted / micro * micro;
  fail(origin, "batch.tokens_per_step",
       fmt::format("{} is no whole number of micro-batches of {} x {} = {} tokens; hint: {}{}", wanted, c.batch.micro_batch_size,
                   c.data.sequence_length, micro, below ? fmt::format("{} or ", below) : "", below + micro));
}

}  // namespace

void validate(const ModelConfig& m, const std::string& origin) {
  for (const auto& [key, value] : {std::pair{"vocab_size", m.vocab_size}, std::pair{"hidden_size", m.hidden_size},
                                   std::pair{"intermediate_size", m.intermediate_size}, std::pair{"num_hidden_layers", m.num_hidden_layers},
                                   std::pair{"num_attention_heads", m.num_attention_heads}})
    if (value < 1) fail(origin, fmt::format("model.{}", key), "missing; expected a whole number >= 1");
  if (m.num_attention_heads % m.kv_heads() != 0)
    fail(origin, "model.num_key_value_heads", fmt::format("{} does not divide num_attention_heads {}", m.kv_heads(), m.num_attention_heads));
  if (m.head_dim == 0 && m.hidden_size % m.num_attention_heads != 0)
    fail(origin, "model.num_attention_heads",
         fmt::format("{} does not divide hidden_size {}; hint: or give head_dim", m.num_attention_heads, m.hidden_size));
  if (const RopeScaling& r = m.rope_scaling; r.rope_type == "llama3") {
    if (r.original_max_position_embeddings < 1) fail(origin, "model.rope_scaling.original_max_position_embeddings", "missing; llama3 scaling needs the original context length");
    if (r.high_freq_factor <= r.low_freq_factor)
      fail(origin, "model.rope_scaling.high_freq_factor", fmt::format("{} must be above low_freq_factor {}", r.high_freq_factor, r.low_freq_factor));
  }
  if (m.head_size() % 2 != 0)
    fail(origin, "model.head_dim", fmt::format("must be even (rotary pairs), is {}{}", m.head_size(),
                                               m.head_dim ? "" : " = hidden_size / num_attention_heads"));
}

void validate(const Config& c, const std::string& origin) {
  validate(c.model, origin);
  if (c.data.sequence_length > c.model.max_position_embeddings)
    fail(origin, "data.sequence_length", fmt::format("{} is longer than model.max_position_embeddings {}", c.data.sequence_length,
                                                     c.model.max_position_embeddings));
  check_batch(c, origin);
  check_memory(c, origin);
  if (c.schedule.warmup_steps >= c.schedule.steps)
    fail(origin, "schedule.warmup_steps", fmt::format("{} leaves nothing of {} steps; it must be smaller", c.schedule.warmup_steps, c.schedule.steps));
  check_layer(c.remat.defaults, c.model, origin, "remat.default");
  for (const RematConfig::Range& r : c.remat.ranges) {
    const std::string path = fmt::format("remat.layers[\"{}\"]", r.first == r.last ? std::to_string(r.first) : fmt::format("{}-{}", r.first, r.last));
    if (r.last >= c.model.num_hidden_layers)
      fail(origin, path, fmt::format("the model has layers 0 to {}", c.model.num_hidden_layers - 1));
    check_layer(r.policy, c.model, origin, path);
  }
}

}  // namespace relume::config
