// Which parameters a Llama has, how they lie in memory, and how that maps to Hugging Face tensors. The one place that knows
// both layouts.
#pragma once
#include <string>
#include <vector>

#include "relume/base/shape.h"
#include "relume/config/config.h"

namespace relume {

/// Rows [first_row, first_row + rows) of a parameter are one Hugging Face tensor: [rows, columns], or its transpose
/// [columns, rows] where relume keeps the weight component-major (o_proj, down_proj).
struct HfPiece {
  std::string name;
  std::int64_t first_row = 0, rows = 0;
  bool transposed = false;
};

struct Parameter {
  std::string name;  ///< "layers.3.qkv"
  Shape shape;
  std::int64_t offset = 0;  ///< elements into the flat list
  bool norm = false;        ///< starts at 1 instead of random
  bool residual_projection = false;  ///< starts smaller by 1 / sqrt(2 layers)
  std::vector<HfPiece> pieces = {};

  [[nodiscard]] std::int64_t columns() const { return shape.rank() == 1 ? 1 : shape[1]; }
  /// Shape of the piece as Hugging Face has it.
  [[nodiscard]] Shape hf_shape(const HfPiece& piece) const;
};

/// All parameters in one flat list; those with weight decay come first. Gradients and moments have the same layout.
struct ParameterLayout {
  std::vector<Parameter> parameters;
  std::int64_t elements = 0;  ///< of the flat list, padding between parameters included
  std::int64_t decayed = 0;   ///< of these, the first ones have weight decay
  std::int64_t matrices = 0;  ///< of these, the first ones are matrices: with bf16 they have a rounded copy
  std::int64_t count = 0;     ///< true number of parameters

  [[nodiscard]] const Parameter& find(const std::string& name) const;
};

[[nodiscard]] ParameterLayout make_parameter_layout(const ModelConfig& model);

/// Copies one piece between the Hugging Face tensor and the parameter (both f32, row-major).
void copy_from_hf(const Parameter& parameter, const HfPiece& piece, const float* hf, float* parameter_data);
void copy_to_hf(const Parameter& parameter, const HfPiece& piece, const float* parameter_data, float* hf);

/// Initial values: N(0, initializer_range), residual projections divided by sqrt(2 layers), norms 1. A pure function of seed,
/// Hugging Face name and element index: the same on any device, thread count and memory layout.
void initialize(const Parameter& parameter, const ModelConfig& model, std::uint64_t seed, float* data);

}  // namespace relume
