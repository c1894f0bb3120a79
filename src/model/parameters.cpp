#include "relume/model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "relume/base/check.h"
#include "relume/base/philox.h"

namespace relume {

namespace {

constexpr std::int64_t kFlatAlignment = 64;  // elements: every parameter starts on a 256-byte boundary

/// Collects parameters in order and gives them their place.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(const ModelConfig& m) : m_(m) {}

  ParameterLayout build() {
    for (std::int64_t l = 0; l < m_.num_hidden_layers; ++l) add_layer_matrices(l);
    if (!m_.tie_word_embeddings) add({"lm_head", {m_.vocab_size, m_.hidden_size}}, {{"lm_head.weight", 0, m_.vocab_size}});
    layout_.decayed = layout_.elements;
    add({"embedding", {m_.vocab_size, m_.hidden_size}}, {{"model.embed_tokens.weight", 0, m_.vocab_size}});
    layout_.matrices = layout_.elements;
    for (std::int64_t l = 0; l < m_.num_hidden_layers; ++l) {
      add_norm(fmt::format("layers.{}.attn_norm", l), fmt::format("model.layers.{}.input_layernorm.weight", l));
      add_norm(fmt::format("layers.{}.ffn_norm", l), fmt::format("model.layers.{}.post_attention_layernorm.weight", l));
    }
    add_norm("final_norm", "model.norm.weight");
    return std::move(layout_);
  }

 private:
  void add_layer_matrices(std::int64_t l) {
    const std::string hf = fmt::format("model.layers.{}.", l), name = fmt::format("layers.{}.", l);
    const std::int64_t d = m_.hidden_size, q = m_.query_width(), kv = m_.kv_width(), f = m_.intermediate_size;
    add({name + "qkv", {q + 2 * kv, d}}, {{hf + "self_attn.q_proj.weight", 0, q},
                                          {hf + "self_attn.k_proj.weight", q, kv},
                                          {hf + "self_attn.v_proj.weight", q + kv, kv}});
    add({.name = name + "o", .shape = {q, d}, .residual_projection = true}, {{hf + "self_attn.o_proj.weight", 0, q, true}});
    add({name + "gate_up", {2 * f, d}}, {{hf + "mlp.gate_proj.weight", 0, f}, {hf + "mlp.up_proj.weight", f, f}});
    add({.name = name + "down", .shape = {f, d}, .residual_projection = true}, {{hf + "mlp.down_proj.weight", 0, f, true}});
  }

  void add_norm(const std::string& name, const std::string& hf) {
    add({.name = name, .shape = {m_.hidden_size}, .norm = true}, {{hf, 0, m_.hidden_size}});
  }

  void add(Parameter p, std::vector<HfPiece> pieces) {
    p.pieces = std::move(pieces);
    p.offset = layout_.elements;
    layout_.count += p.shape.elements();
    layout_.elements += (p.shape.elements() + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
    layout_.parameters.push_back(std::move(p));
  }

  const ModelConfig& m_;
  ParameterLayout layout_;
};

/// Two normal deviates from two random words (Box-Muller).
void two_normals(std::uint32_t a, std::uint32_t b, double* out) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32, angle = 2 * std::numbers::pi * (static_cast<double>(b) * 0x1p-32);
  const double radius = std::sqrt(-2 * std::log(u));
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

}  // namespace

Shape Parameter::hf_shape(const HfPiece& piece) const {
  if (shape.rank() == 1) return shape;
  return piece.transposed ? Shape{columns(), piece.rows} : Shape{piece.rows, columns()};
}

const Parameter& ParameterLayout::find(const std::string& name) const {
  for (const Parameter& p : parameters)
    if (p.name == name) return p;
  check_failed(("parameter " + name).c_str(), __FILE__, __LINE__);
}

ParameterLayout make_parameter_layout(const ModelConfig& model) { return LayoutBuilder(model).build(); }

// Transposes in square tiles, so that neither side strides through memory for long.
void copy_from_hf(const Parameter& p, const HfPiece& piece, const float* hf, float* data) {
  const std::int64_t columns = p.columns(), tile = 32;
  float* rows = data + piece.first_row * columns;
  if (!piece.transposed) {
    std::copy(hf, hf + piece.rows * columns, rows);
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t r0 = 0; r0 < piece.rows; r0 += tile)
    for (std::int64_t c0 = 0; c0 < columns; c0 += tile)
      for (std::int64_t r = r0; r < std::min(r0 + tile, piece.rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + tile, columns); ++c) rows[r * columns + c] = hf[c * piece.rows + r];
}

void copy_to_hf(const Parameter& p, const HfPiece& piece, const float* data, float* hf) {
  const std::int64_t columns = p.columns(), tile = 32;
  const float* rows = data + piece.first_row * columns;
  if (!piece.transposed) {
    std::copy(rows, rows + piece.rows * columns, hf);
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t c0 = 0; c0 < columns; c0 += tile)
    for (std::int64_t r0 = 0; r0 < piece.rows; r0 += tile)
      for (std::int64_t c = c0; c < std::min(c0 + tile, columns); ++c)
        for (std::int64_t r = r0; r < std::min(r0 + tile, piece.rows); ++r) hf[c * piece.rows + r] = rows[r * columns + c];
}

void initialize(const Parameter& p, const ModelConfig& model, std::uint64_t seed, float* data) {
  if (p.norm) {
    std::fill(data, data + p.shape.elements(), 1.f);
    return;
  }
  double scale = model.initializer_range;
  if (p.residual_projection) scale /= std::sqrt(2.0 * static_cast<double>(model.num_hidden_layers));
  std::vector<float> hf;
  for (const HfPiece& piece : p.pieces) {
    const std::int64_t n = piece.rows * p.columns();
    const std::uint64_t key = stream_key(seed, piece.name.data(), piece.name.size());
    hf.resize(static_cast<std::size_t>(n));
#pragma omp parallel for schedule(static)
    for (std::int64_t block = 0; block < (n + 3) / 4; ++block) {
      const PhiloxBlock random = philox(key, static_cast<std::uint64_t>(block));
      double normal[4];
      two_normals(random.word[0], random.word[1], normal);
      two_normals(random.word[2], random.word[3], normal + 2);
      for (std::int64_t i = 4 * block; i < std::min(4 * block + 4, n); ++i)
        hf[static_cast<std::size_t>(i)] = static_cast<float>(scale * normal[i % 4]);
    }
    copy_from_hf(p, piece, hf.data(), data);
  }
}

}  // namespace relume
