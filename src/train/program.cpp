#include "relume/train/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "relume/base/check.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/train/generation.h"

namespace relume {

namespace {

GraphShape shape_of(const Config& c, std::int64_t chunk_rows, bool training) {
  return {.sequences = c.batch.micro_batch_size, .tokens = c.data.sequence_length, .head_chunk_rows = chunk_rows, .dtype = dtype_of(c.precision), .training = training,
          .keep_scores = training && c.audit.every_steps > 0};
}

/// Whether the most bytes are live while the head runs.
bool head_sets_peak(const Recording& r) {
  const Node& n = r.tape->nodes()[static_cast<std::size_t>(r.plan.nodes[static_cast<std::size_t>(r.plan.peak_tick)].node)];
  return n.op == &kLinearCrossEntropy;
}

std::unique_ptr<Tape> record_evaluation(const ModelConfig& model, const ParameterLayout& layout, const GraphShape& shape) {
  auto tape = std::make_unique<Tape>();
  Llama llama(*tape, model, layout, shape);
  llama.loss(llama.forward(RematConfig{}));
  return tape;
}

/// Explicit policies: records until the head's chunks are small enough.
void plan_training(Program& p, const Config& c, const KernelTable& kernels) {
  std::vector<std::pair<std::int64_t, Recording>> trials;  // chunks, the larger first
  trials.emplace_back(c.micro_batch_tokens(), planned(record_training(c, p.layout, c.micro_batch_tokens()), kernels));
  while (head_sets_peak(trials.back().second) && trials.back().first > kSmallestHeadChunk) {
    const std::int64_t chunk = std::max(kSmallestHeadChunk, (trials.back().first + 1) / 2);
    trials.emplace_back(chunk, planned(record_training(c, p.layout, chunk), kernels));
  }
  const auto bytes = [](const auto& trial) { return trial.second.plan.peak_bytes(); };
  const double least = static_cast<double>(bytes(*std::ranges::min_element(trials, {}, bytes)));
  const auto good = [&](const auto& t) {
    return static_cast<double>(bytes(t)) <= (1 + kHeadShare) * least && (c.memory.budget == 0 || bytes(t) <= c.memory.budget);
  };
  const auto found = std::ranges::find_if(trials, good);
  auto& chosen = found == trials.end() ? *std::ranges::min_element(trials, {}, bytes) : *found;
  p.head_chunk_rows = chosen.first;
  p.training = std::move(chosen.second);
  p.evaluation = planned(record_evaluation(c, p.layout, p.head_chunk_rows), kernels);
}

/// Policies chosen for the budget. Placement reaches the lower bound on training steps; if ever it does not, the choice is made
/// again with less.
void plan_within_budget(Program& p, const Config& written, const KernelTable& kernels, const DeviceRates& rates) {
  Config c = written;
  for (std::int64_t margin = 0;;) {
    c.remat = written.remat;
    c.memory.budget = written.memory.budget - margin;
    const RematPlanner::Result chosen = resolve_remat(c, kernels, rates);
    c.remat = p.remat = chosen.remat;
    p.head_chunk_rows = chosen.head_chunk_rows;
    p.training = planned(record_training(c, p.layout, p.head_chunk_rows), kernels);
    p.evaluation = planned(record_evaluation(c, p.layout, p.head_chunk_rows), kernels);
    const std::int64_t over = p.planned_bytes() - written.memory.budget;
    if (over <= 0) return;
    margin += over;
  }
}

}  // namespace

DType dtype_of(const std::string& precision) {
  CHECK(precision == "fp32" || precision == "bf16");
  return precision == "bf16" ? DType::bf16 : DType::f32;
}

Recording planned(std::unique_ptr<Tape> tape, const KernelTable& kernels) {
  Plan plan = make_plan(*tape, kernels);
  return {std::move(tape), std::move(plan)};
}

Recording record_evaluation(const ModelConfig& model, const ParameterLayout& layout, std::int64_t sequences, std::int64_t tokens,
                            const std::string& precision, const KernelTable& kernels) {
  const std::int64_t rows = sequences * tokens;
  return planned(record_evaluation(model, layout,
                                   {.sequences = sequences, .tokens = tokens, .head_chunk_rows = std::min(rows, kSmallestHeadChunk),
                                    .dtype = dtype_of(precision), .training = false}),
                 kernels);
}

std::unique_ptr<Tape> record_training(const Config& c, const ParameterLayout& layout, std::int64_t chunk_rows) {
  auto tape = std::make_unique<Tape>();
  Llama llama(*tape, c.model, layout, shape_of(c, chunk_rows, true));
  tape->backward(llama.loss(llama.forward(c.remat)));
  llama.update(c.optimizer);
  if (c.evaluation.samples > 0) reserve_generation(*tape, c.model, sample_shape(c), dtype_of(c.precision));
  return tape;
}

std::unique_ptr<Tape> record_evaluation(const Config& c, const ParameterLayout& layout, std::int64_t chunk_rows) {
  return record_evaluation(c.model, layout, shape_of(c, chunk_rows, false));
}

void record_update(Tape& tape, const Config& c, const ParameterLayout& layout) {
  Llama(tape, c.model, layout, shape_of(c, kSmallestHeadChunk, true)).update(c.optimizer);
}

Program make_program(const Config& c, const KernelTable& kernels, const DeviceRates& rates) {
  Program p{.layout = make_parameter_layout(c.model), .remat = c.remat};
  if (c.remat.automatic()) {
    plan_within_budget(p, c, kernels, rates);
    return p;
  }
  plan_training(p, c, kernels);
  if (c.memory.budget != 0 && p.planned_bytes() > c.memory.budget)
    throw Error(ErrorCode::kBudget, fmt::format("memory.budget: {} is less than the {} ({}) that the policies in remat need; hint: --set remat.default=auto "
                                                "chooses policies that fit", exact_bytes(c.memory.budget), format_bytes(p.planned_bytes()), exact_bytes(p.planned_bytes())));
  return p;
}

std::string resolve_precision(const std::string& precision, const DeviceInfo& device) {
  if (precision == "auto") return device.bf16 ? "bf16" : "fp32";
  if (precision == "bf16" && !device.bf16)
    throw Error(ErrorCode::kConfig, fmt::format("precision: bf16 needs a processor with avx512_bf16 or amx_bf16; this is {}; hint: --set precision=fp32",
                                                device.description));
  return precision;
}

void initialize_weights(const Config& c, const ParameterLayout& layout, Memory& memory) {
  std::vector<float> values;
  for (const Parameter& p : layout.parameters) {
    values.resize(static_cast<std::size_t>(p.shape.elements()));
    initialize(p, c.model, static_cast<std::uint64_t>(c.seed), values.data());
    memory.backend().copy_to_device(memory.persistent(names::kParameters) + p.offset * 4, values.data(), p.shape.elements() * 4);
  }
}

void refresh_derived_weights(const ParameterLayout& layout, Memory& memory) {
  if (!memory.has(names::kMatricesBf16)) return;
  Tape tape;
  record_rounding(tape, layout);
  const Plan plan = make_plan(tape, memory.backend().kernels());
  Executor(tape, plan, memory).run_micro_batch();
}

double predicted_step_s(const Recording& r, std::int64_t micro_batches, const DeviceRates& rates) {
  double s = 0;
  for (const PlannedNode& planned : r.plan.nodes) {
    const bool update = r.tape->nodes()[static_cast<std::size_t>(planned.node)].phase == Phase::kUpdate;
    s += (update ? 1.0 : static_cast<double>(micro_batches)) * seconds(planned.cost, rates);
  }
  return s;
}

StepFlops step_flops(const Recording& r, std::int64_t micro_batches) {
  StepFlops f;
  for (const PlannedNode& planned : r.plan.nodes) {
    const Node& node = r.tape->nodes()[static_cast<std::size_t>(planned.node)];
    const double times = node.phase == Phase::kUpdate ? 1.0 : static_cast<double>(micro_batches);
    f.executed += times * planned.cost.flops;
    if (node.recompute) f.recomputed += times * planned.cost.flops;
  }
  return f;
}

}  // namespace relume
