// A config as planned tapes: training and evaluation, sharing parameters, step inputs and one arena.
#pragma once
#include <memory>
#include <optional>

#include "relume/model/llama.h"
#include "relume/plan/executor.h"
#include "relume/train/remat_planner.h"

namespace relume {

/// One tape with its plan.
struct Recording {
  std::unique_ptr<Tape> tape;
  Plan plan;
};

/// The tape with its plan.
[[nodiscard]] Recording planned(std::unique_ptr<Tape> tape, const KernelTable& kernels);

struct Program {
  ParameterLayout layout;
  RematConfig remat = {};  ///< what was recorded: the config's policies, those of "auto" chosen
  std::int64_t head_chunk_rows = 0;
  Recording training = {}, evaluation = {};

  [[nodiscard]] std::int64_t persistent_bytes() const { return training.plan.persistent_bytes; }
  [[nodiscard]] std::int64_t arena_bytes() const { return std::max(training.plan.arena_bytes, evaluation.plan.arena_bytes); }
  [[nodiscard]] std::int64_t planned_bytes() const { return persistent_bytes() + arena_bytes(); }
};

[[nodiscard]] DType dtype_of(const std::string& precision);  ///< "fp32" or "bf16"

/// "auto" replaced by the fastest precision the device has. Throws kConfig if it lacks the one asked for.
[[nodiscard]] std::string resolve_precision(const std::string& precision, const DeviceInfo& device);

/// The head is cut into the fewest chunks with which it does not set the peak, or with which the plan needs at most this share
/// more than with the smallest.
constexpr double kHeadShare = 0.02;
constexpr std::int64_t kSmallestHeadChunk = 256;  ///< rows: every chunk reads and writes the whole gradient of the head

/// Records and plans both tapes; config.precision is resolved. "auto" policies are chosen with the rates. Throws kBudget if
/// nothing fits memory.budget.
[[nodiscard]] Program make_program(const Config& config, const KernelTable& kernels, const DeviceRates& rates = {});

/// The parts of it, not planned: forward and backward under the config's policies with the update, the evaluation, and the
/// update alone.
[[nodiscard]] std::unique_ptr<Tape> record_training(const Config& config, const ParameterLayout& layout, std::int64_t head_chunk_rows);
[[nodiscard]] std::unique_ptr<Tape> record_evaluation(const Config& config, const ParameterLayout& layout, std::int64_t head_chunk_rows);
void record_update(Tape& tape, const Config& config, const ParameterLayout& layout);

/// The evaluation tape alone, for a model that is not trained.
[[nodiscard]] Recording record_evaluation(const ModelConfig& model, const ParameterLayout& layout, std::int64_t sequences,
                                          std::int64_t tokens, const std::string& precision, const KernelTable& kernels);

/// Writes the initial parameters of config.seed.
void initialize_weights(const Config& config, const ParameterLayout& layout, Memory& memory);

/// Fills what the tapes derive from the parameters (the bf16 copy of the matrices, where they have one). Call after the host
/// wrote parameters.
void refresh_derived_weights(const ParameterLayout& layout, Memory& memory);

/// Predicted seconds of one optimizer step.
[[nodiscard]] double predicted_step_s(const Recording& recording, std::int64_t micro_batches, const DeviceRates& rates);

/// Executed flops of one optimizer step, and what of them recomputes (or forms reduced blocks).
struct StepFlops {
  double executed = 0, recomputed = 0;
};
[[nodiscard]] StepFlops step_flops(const Recording& recording, std::int64_t micro_batches);

}  // namespace relume
