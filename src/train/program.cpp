#include "relume/train/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "relume/base/check.h"
#include "relume/base/error.h"

namespace relume {

namespace {

constexpr std::int64_t kSmallestChunk = 256;  // rows: every chunk reads and writes the whole gradient of the head
constexpr double kHeadShare = 0.02;           // of planned memory, given for larger chunks

DType dtype_of(const std::string& precision) {
  CHECK(precision == "fp32" || precision == "bf16");
  return precision == "bf16" ? DType::bf16 : DType::f32;
}

GraphShape shape_of(const Config& c, std::int64_t chunk_rows, bool training) {
  return {.sequences = c.batch.micro_batch_size, .tokens = c.data.sequence_length, .head_chunk_rows = chunk_rows, .dtype = dtype_of(c.precision), .training = training};
}

Recording record_training(const Config& c, const ParameterLayout& layout, std::int64_t chunk_rows, const KernelTable& kernels) {
  Recording r{std::make_unique<Tape>(), {}};
  Llama llama(*r.tape, c.model, layout, shape_of(c, chunk_rows, true));
  r.tape->backward(llama.loss(llama.forward(c.remat)));
  llama.update(c.optimizer);
  r.plan = make_plan(*r.tape, kernels);
  return r;
}

Recording record_evaluation(const ModelConfig& model, const ParameterLayout& layout, const GraphShape& shape, const KernelTable& kernels) {
  Recording r{std::make_unique<Tape>(), {}};
  Llama llama(*r.tape, model, layout, shape);
  llama.loss(llama.forward(RematConfig{}));
  r.plan = make_plan(*r.tape, kernels);
  return r;
}

/// Whether the most bytes are live while the head runs.
bool head_sets_peak(const Recording& r) {
  const Node& n = r.tape->nodes()[static_cast<std::size_t>(r.plan.nodes[static_cast<std::size_t>(r.plan.peak_tick)].node)];
  return n.op == &kLinearCrossEntropy;
}

}  // namespace

Recording record_evaluation(const ModelConfig& model, const ParameterLayout& layout, std::int64_t sequences, std::int64_t tokens,
                            const std::string& precision, const KernelTable& kernels) {
  const std::int64_t rows = sequences * tokens;
  return record_evaluation(model, layout,
                           {.sequences = sequences, .tokens = tokens, .head_chunk_rows = std::min<std::int64_t>(rows, 256), .dtype = dtype_of(precision), .training = false},
                           kernels);
}

Program make_program(const Config& c, const KernelTable& kernels) {
  Program p{.layout = make_parameter_layout(c.model)};
  const std::int64_t rows = c.micro_batch_tokens();
  std::vector<std::pair<std::int64_t, Recording>> trials;  // chunks, the larger first
  trials.emplace_back(rows, record_training(c, p.layout, rows, kernels));
  while (head_sets_peak(trials.back().second) && trials.back().first > kSmallestChunk) {
    const std::int64_t chunk = std::max(kSmallestChunk, (trials.back().first + 1) / 2);
    trials.emplace_back(chunk, record_training(c, p.layout, chunk, kernels));
  }
  const auto bytes = [](const auto& trial) { return trial.second.plan.peak_bytes(); };
  const double least = static_cast<double>(bytes(*std::ranges::min_element(trials, {}, bytes)));
  auto& chosen = *std::ranges::find_if(trials, [&](const auto& t) { return static_cast<double>(bytes(t)) <= (1 + kHeadShare) * least; });
  p.head_chunk_rows = chosen.first;
  p.training = std::move(chosen.second);
  p.evaluation = record_evaluation(c.model, p.layout, shape_of(c, p.head_chunk_rows, false), kernels);
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
