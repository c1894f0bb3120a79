#include "relume/model/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace relume {

std::string names::generation(const char* name, std::int64_t tokens) { return fmt::format("{} of {} to continue", name, tokens); }

GenerationInputs generation_inputs(Tape& tape, const ModelConfig& model, std::int64_t tokens) {
  return {tape.persistent(names::generation(names::kTokens, tokens), {tokens}, DType::i32, Role::kInput),
          tape.persistent(names::generation(names::kRopeTable, tokens), {tokens, model.head_size()}, DType::f32, Role::kInput)};
}

Tensor key_value_cache(Tape& tape, const ModelConfig& model, std::int64_t layer, std::int64_t cache_tokens, DType dtype) {
  return tape.persistent(fmt::format("layers.{}.kv_cache", layer), {cache_tokens, 2 * model.kv_width()}, dtype, Role::kInput);
}

Tensor generation_logits(Tape& tape, const ModelConfig& model) { return tape.persistent(names::kLogits, {1, model.vocab_size}, DType::f32, Role::kInput); }

Llama::Llama(Tape& tape, const ModelConfig& model, const ParameterLayout& layout, const GraphShape& shape)
    : tape_(tape), model_(model), layout_(layout), shape_(shape) {
  const std::int64_t rows = shape.sequences * shape.tokens;
  if (shape.cache_tokens > 0) {
    const GenerationInputs inputs = generation_inputs(tape, model, rows);
    tokens_ = inputs.tokens;
    rope_table_ = inputs.rope_table;
  } else {
    tokens_ = tape.persistent(names::kTokens, {rows}, DType::i32, Role::kInput);
    targets_ = tape.persistent(names::kTargets, {rows}, DType::i32, Role::kInput);
    rope_table_ = tape.persistent(names::kRopeTable, {shape.tokens, model.head_size()}, accumulation_dtype(shape.dtype), Role::kConstant);
  }
  state_ = tape.persistent(names::kState, {sizeof(StepState)}, DType::u8, Role::kInput);
  result_ = tape.persistent(names::kResult, {sizeof(StepResult)}, DType::u8, Role::kInput);
  const DType master = accumulation_dtype(shape.dtype);
  flat_ = tape.persistent(names::kParameters, {layout.elements}, master, Role::kParameter);
  if (shape.dtype == DType::bf16) matrices_bf16_ = tape.persistent(names::kMatricesBf16, {layout.matrices}, DType::bf16, Role::kParameter);
  if (shape.training) flat_gradient_ = tape.persistent(names::kGradients, {layout.elements}, master, Role::kGradient);
  if (shape.keep_scores) {
    const ScoreRange last = score_range(model, model.num_hidden_layers - 1, "ffn");
    scores_ = tape.persistent(names::kScores, {last.offset + last.count}, master, Role::kInput);
  }
  for (const Parameter& p : layout.parameters) {
    parameter_[p.name] = tape.view(matrices_bf16_ && !p.norm ? matrices_bf16_ : flat_, p.offset, p.shape, p.name);
    if (shape.training) tape.set_accumulator(parameter_[p.name], tape.view(flat_gradient_, p.offset, p.shape, "d " + p.name.substr(p.name.rfind('.') + 1)));
  }
}

Tensor Llama::layer_parameter(std::int64_t layer, const char* name) const {
  return parameter_.at(fmt::format("layers.{}.{}", layer, name));
}

BlockRecord Llama::attention_block(std::int64_t layer, Tensor x, const Selection* selection) const {
  const std::int64_t hd = model_.head_size(), per_group = model_.num_attention_heads / model_.kv_heads();
  const std::int64_t groups = selection ? selection->indices.shape()[0] : model_.kv_heads();
  Tensor w_qkv = layer_parameter(layer, "qkv"), w_o = layer_parameter(layer, "o");  // ((H + 2 KV) hd, C), (H hd, C)
  if (selection) {
    w_qkv = tape_.name(gather_components(w_qkv, selection->indices, {3, {per_group * hd, hd, hd}}), "qkv weights");
    w_o = tape_.name(gather_components(w_o, selection->indices, {1, {per_group * hd}}), "o weights");
  }
  const Tensor h = tape_.name(rms_norm(x, layer_parameter(layer, "attn_norm"), model_.rms_norm_eps), "attn_norm");
  const Tensor projected = tape_.name(linear(h, w_qkv), "qkv before rope");
  const Tensor qkv = tape_.name(rope(projected, rope_table_, hd, groups * (per_group + 1) * hd), "qkv");
  const AttentionLayout layout{shape_.tokens, groups * per_group, groups, hd};
  const Tensor out = tape_.name(shape_.cache_tokens > 0 ? cached_attention(qkv, state_, key_value_cache(tape_, model_, layer, shape_.cache_tokens, shape_.dtype), layout) : attention(qkv, layout), "attn_out");
  Tensor weighted = out;
  if (selection && selection->weights) weighted = scale_components(out, selection->weights, per_group * hd);
  return {tape_.name(project(weighted, w_o, x), "mid"), out, w_o, per_group * hd};
}

BlockRecord Llama::ffn_block(std::int64_t layer, Tensor x, const Selection* selection) const {
  Tensor w_gate_up = layer_parameter(layer, "gate_up"), w_down = layer_parameter(layer, "down");  // (2 F, C), (F, C)
  if (selection) {
    w_gate_up = tape_.name(gather_components(w_gate_up, selection->indices, {2, {1, 1}}), "gate_up weights");
    w_down = tape_.name(gather_components(w_down, selection->indices, {1, {1}}), "down weights");
  }
  const Tensor h = tape_.name(rms_norm(x, layer_parameter(layer, "ffn_norm"), model_.rms_norm_eps), "ffn_norm");
  const Tensor gate_up = tape_.name(linear(h, w_gate_up), "gate_up");
  const Tensor product = tape_.name(swiglu(gate_up), "swiglu");
  Tensor weighted = product;
  if (selection && selection->weights) weighted = scale_components(product, selection->weights, 1);
  return {tape_.name(project(weighted, w_down, x), "x"), product, w_down, 1};
}

Tensor Llama::forward(const RematConfig& remat) {
  return forward([this, &remat](std::int64_t layer, const std::string& kind, const SelectionContext& context, BlockSpec& spec) {
    const LayerPolicy& policy = remat.layer(layer);
    const bool attention = kind == "attention";
    apply(decide(attention ? policy.attention : policy.ffn, kind, attention ? model_.kv_heads() : model_.intermediate_size), context, spec);
    if (attention) spec.keep_output = policy.keep_mid;
  });
}

Tensor Llama::forward(const DecideBlock& decide_block) {
  Tensor x = tape_.name(embedding(tokens_, parameter_.at("embedding")), "x");  // (N, C)
  for (std::int64_t layer = 0; layer < model_.num_hidden_layers; ++layer)
    for (const char* kind : {"attention", "ffn"}) x = block(layer, kind, x, decide_block);
  return tape_.name(rms_norm(x, parameter_.at("final_norm"), model_.rms_norm_eps), "final_norm");
}

Tensor Llama::block(std::int64_t layer, const std::string& kind, Tensor x, const DecideBlock& decide_block) {
  const bool attention = kind == "attention";
  BlockSpec spec{.layer = static_cast<int>(layer), .kind = kind, .build = [this, layer, attention](Tensor in, const Selection* s) {
                   return attention ? attention_block(layer, in, s) : ffn_block(layer, in, s);
                 }};
  if (shape_.training) {
    SelectionContext context{layer, attention ? 0 : 1, state_, result_, {}};
    if (scores_) {
      const ScoreRange range = score_range(model_, layer, kind);
      context.scores = tape_.view(scores_, range.offset, {range.count}, "scores");
    }
    decide_block(layer, kind, context, spec);
  }
  return tape_.block(std::move(spec), x);
}

ScoreRange score_range(const ModelConfig& m, std::int64_t layer, std::string_view kind) {
  const std::int64_t groups = m.kv_heads(), first = layer * (groups + m.intermediate_size);
  return kind == "attention" ? ScoreRange{first, groups} : ScoreRange{first + groups, m.intermediate_size};
}

Tensor Llama::loss(Tensor final_norm) {
  const Tensor loss = linear_cross_entropy(final_norm, head(), targets_, state_, result_, shape_.head_chunk_rows);
  tape_.keep_result(loss);
  return loss;
}

void Llama::logits(Tensor final_norm) {
  tape_.keep_result(add_linear(final_norm, head(), generation_logits(tape_, model_)));
}

void Llama::update(const OptimizerConfig& o) {
  tape_.begin_update();
  const Tensor m = tape_.persistent(names::kFirstMoment, {layout_.elements}, DType::f32, Role::kOptimizer);
  const Tensor v = tape_.persistent(names::kSecondMoment, {layout_.elements}, DType::f32, Role::kOptimizer);
  adamw(flat_, flat_gradient_, m, v, sum_of_squares(flat_gradient_), state_, result_, matrices_bf16_,
        {layout_.decayed, o.betas[0], o.betas[1], o.eps, o.weight_decay, o.grad_clip});
}

void record_rounding(Tape& tape, const ParameterLayout& layout) {
  round_to_bf16(tape.persistent(names::kParameters, {layout.elements}, DType::f32, Role::kParameter),
                tape.persistent(names::kMatricesBf16, {layout.matrices}, DType::bf16, Role::kParameter));
}

std::vector<float> rope_table(const ModelConfig& model, std::int64_t tokens, std::int64_t first_position) {
  const std::int64_t hd = model.head_size(), half = hd / 2;
  std::vector<float> table(static_cast<std::size_t>(tokens * hd));
  for (std::int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(hd);
    float frequency = 1.f / std::pow(static_cast<float>(model.rope_theta), exponent);
    if (const RopeScaling& r = model.rope_scaling; r.rope_type == "llama3") {
      const double turns = static_cast<double>(r.original_max_position_embeddings) * static_cast<double>(frequency) / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor), 0.0, 1.0);
      frequency = static_cast<float>(static_cast<double>(frequency) * (kept + (1 - kept) / r.factor));
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float angle = static_cast<float>(first_position + t) * frequency;
      table[static_cast<std::size_t>(t * hd + i)] = std::cos(angle);
      table[static_cast<std::size_t>(t * hd + half + i)] = std::sin(angle);
    }
  }
  return table;
}

double model_flops_per_token(const ModelConfig& m, std::int64_t tokens) {
  const double d = static_cast<double>(m.hidden_size), layers = static_cast<double>(m.num_hidden_layers);
  const double q = static_cast<double>(m.query_width()), kv = static_cast<double>(m.kv_width());
  const double weights = layers * (2 * d * q + 2 * d * kv + 3 * d * static_cast<double>(m.intermediate_size)) + d * static_cast<double>(m.vocab_size);
  return 6 * weights + 6 * layers * q * static_cast<double>(tokens + 1);
}

}  // namespace relume
