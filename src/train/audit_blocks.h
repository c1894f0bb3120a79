// The parts that an audit runs: a whole model that shows what every block gets, and one block under several policies.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "relume/train/audit.h"
#include "relume/train/program.h"

namespace relume {

using Vector = std::vector<float>;

/// Input and incoming gradient of a block.
struct CapturedBlock {
  Vector x, dy;
};

/// The whole model: runs batches under store and keeps what every block got.
class CapturedModel {
 public:
  /// The config has a resolved precision and must outlive it.
  CapturedModel(const Config& config, Backend& backend, const AuditOptions& options);

  /// For each batch and block (attention and ffn of layer 0, of layer 1, ...).
  [[nodiscard]] std::vector<std::vector<CapturedBlock>> capture(std::int64_t batches);
  [[nodiscard]] const GraphShape& shape() const { return shape_; }
  /// One matrix or norm of a layer.
  [[nodiscard]] Vector parameter(const std::string& name) const;

 private:
  const Config& config_;
  ParameterLayout layout_;
  GraphShape shape_;
  Recording recording_;
  Memory memory_;
};

/// What one run of a block gave.
struct BlockGradients {
  Vector matrices, dx;  ///< dx without the residual path
  double seconds = 0;
};

/// One block of one layer under every policy, as tapes of their own on a model of one layer.
class BlockBench {
 public:
  BlockBench(const Config& config, const GraphShape& full, Backend& backend, std::string kind, const std::vector<BlockPolicy>& policies);

  void load_layer(const CapturedModel& model, std::int64_t layer);
  /// `captured` must stay as long as run() is called.
  void set_input(const CapturedBlock& captured);
  [[nodiscard]] BlockGradients run(std::size_t policy, std::int64_t draw, std::int64_t seed);
  /// Scores of the last run of an approximate policy.
  [[nodiscard]] Vector scores() const;
  /// Forward and backward.
  [[nodiscard]] double flops(std::size_t policy) const;
  [[nodiscard]] std::int64_t components() const;
  /// Squared norm of each component's rows of a gradient that run() gave: component-major matrices, each in equal segments.
  [[nodiscard]] std::vector<double> component_energy(const Vector& gradient) const;

 private:
  /// The block's matrices in the order of component_energy().
  [[nodiscard]] std::vector<const Parameter*> matrices() const;
  void write(const char* name, const Vector& values);

  ModelConfig model_;
  ParameterLayout layout_;
  std::string kind_;
  DType dtype_;
  Memory memory_;
  std::vector<Recording> recordings_;
  std::vector<std::unique_ptr<Executor>> executors_;
  Vector dx_now_;
  const Vector* dy_ = nullptr;
};

}  // namespace relume
