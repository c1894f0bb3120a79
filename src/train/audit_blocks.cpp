#include "audit_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>

#include "relume/base/error.h"
#include "relume/train/checkpoint.h"
#include "relume/train/data_loader.h"

namespace relume {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A value as floats.
Vector to_floats(Backend& backend, const TensorView& view) {
  std::vector<std::byte> bytes(at(view.bytes()));
  backend.copy_to_host(bytes.data(), view.data, view.bytes());
  Vector floats(at(view.shape.elements()));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (view.dtype == DType::bf16) {
      std::uint16_t upper;
      std::memcpy(&upper, bytes.data() + 2 * i, 2);
      floats[i] = std::bit_cast<float>(static_cast<std::uint32_t>(upper) << 16);
    } else {
      std::memcpy(&floats[i], bytes.data() + 4 * i, 4);
    }
  }
  return floats;
}

/// Where a planned value is made: tick and output.
struct Place {
  std::size_t tick, output;
};

Place place_of(const Recording& r, int value) {
  const int node = r.tape->values()[at(value)].producer;
  const auto& outputs = r.tape->nodes()[at(node)].out;
  const auto planned = std::find_if(r.plan.nodes.begin(), r.plan.nodes.end(), [&](const PlannedNode& n) { return n.node == node; });
  return {at(planned - r.plan.nodes.begin()), at(std::find(outputs.begin(), outputs.end(), value) - outputs.begin())};
}

ModelConfig one_layer(ModelConfig m) {
  m.num_hidden_layers = 1;
  m.vocab_size = 1;
  return m;
}

}  // namespace

CapturedModel::CapturedModel(const Config& c, Backend& backend, const AuditOptions& options)
    : config_(c), layout_(make_parameter_layout(c.model)), shape_{.sequences = c.batch.micro_batch_size, .tokens = c.data.sequence_length,
      .head_chunk_rows = std::min(kSmallestHeadChunk, c.micro_batch_tokens()), .dtype = c.precision == "bf16" ? DType::bf16 : DType::f32}, memory_(backend) {
  auto tape = std::make_unique<Tape>();
  Llama llama(*tape, c.model, layout_, shape_);
  tape->backward(llama.loss(llama.forward(RematConfig{})));
  recording_ = planned(std::move(tape), backend.kernels());
  memory_.add(*recording_.tape, recording_.plan);
  memory_.allocate();
  const auto table = rope_table(c.model, c.data.sequence_length);
  memory_.write(names::kRopeTable, table.data(), std::ssize(table));
  if (!options.from.empty())
    load_weights(options.from, layout_, memory_);
  else if (!c.init.empty())
    load_weights(c.init, layout_, memory_);
  else
    initialize_weights(c, layout_, memory_);
  refresh_derived_weights(layout_, memory_);
}

std::vector<std::vector<CapturedBlock>> CapturedModel::capture(std::int64_t batches) {
  DataLoader data(config_.data.train, training_windows(config_));
  const std::int64_t rows = config_.micro_batch_tokens(), length = config_.data.sequence_length;
  const std::size_t blocks = recording_.tape->blocks().size();
  std::multimap<std::size_t, std::function<void(const std::vector<TensorView>&)>> at_tick;
  std::vector<std::vector<CapturedBlock>> captured(at(batches), std::vector<CapturedBlock>(blocks));
  std::vector<CapturedBlock>* current = nullptr;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block& block = recording_.tape->blocks()[b];
    const Place x = place_of(recording_, block.in.id), dy = place_of(recording_, recording_.tape->gradient(block.out).id);
    at_tick.emplace(x.tick, [&, b, x](const auto& out) { (*current)[b].x = to_floats(memory_.backend(), out[x.output]); });
    at_tick.emplace(dy.tick, [&, b, dy](const auto& out) { (*current)[b].dy = to_floats(memory_.backend(), out[dy.output]); });
  }
  Executor executor(*recording_.tape, recording_.plan, memory_);
  executor.watch([&](std::size_t tick, const auto&, const auto& out) {
    for (auto [it, end] = at_tick.equal_range(tick); it != end; ++it) it->second(out);
  });
  std::vector<std::int32_t> tokens(at(rows)), targets(at(rows));
  for (auto& batch : captured) {
    for (std::int64_t s = 0; s < config_.batch.micro_batch_size; ++s) data.next(tokens.data() + s * length, targets.data() + s * length);
    const StepState state{.inverse_targets = 1 / static_cast<double>(rows)};
    const StepResult clear{};
    memory_.write(names::kState, &state, 1);
    memory_.write(names::kResult, &clear, 1);
    memory_.write(names::kTokens, tokens.data(), rows);
    memory_.write(names::kTargets, targets.data(), rows);
    current = &batch;
    executor.run_micro_batch();
  }
  return captured;
}

Vector CapturedModel::parameter(const std::string& name) const {
  for (const Parameter& p : layout_.parameters)
    if (p.name == name) {
      Vector v(at(p.shape.elements()));
      memory_.backend().copy_to_host(v.data(), memory_.persistent(names::kParameters) + p.offset * 4, std::ssize(v) * 4);
      return v;
    }
  throw Error(ErrorCode::kRuntime, "[audit] no parameter " + name);
}

// --- one block ------------------------------------------------------------------------------------------------------------------

BlockBench::BlockBench(const Config& c, const GraphShape& full, Backend& backend, std::string kind, const std::vector<BlockPolicy>& policies)
    : model_(one_layer(c.model)), layout_(make_parameter_layout(model_)), kind_(std::move(kind)), dtype_(full.dtype), memory_(backend) {
  GraphShape shape = full;
  shape.keep_scores = true;
  std::vector<int> dx_ids;
  for (const BlockPolicy& policy : policies) {
    auto tape = std::make_unique<Tape>();
    Llama llama(*tape, model_, layout_, shape);
    const Shape rows{shape.sequences * shape.tokens, model_.hidden_size};
    const Tensor x = tape->persistent("audit x", rows, shape.dtype, Role::kInput), dy = tape->persistent("audit dy", rows, shape.dtype, Role::kInput);
    const std::int64_t components = score_range(model_, 0, kind_).count;
    const Tensor y = llama.block(0, kind_, x, [&](std::int64_t, const std::string& block, const SelectionContext& context, BlockSpec& spec) {
      apply(decide(policy, block, components), context, spec);
    });
    tape->backward({{y, dy}});
    const Tensor dx = tape->gradient(x);
    tape->keep_result(dx);
    recordings_.push_back(planned(std::move(tape), backend.kernels()));
    dx_ids.push_back(dx.id);
    memory_.add(*recordings_.back().tape, recordings_.back().plan);
  }
  memory_.allocate();
  const auto table = rope_table(model_, full.tokens);
  memory_.write(names::kRopeTable, table.data(), std::ssize(table));
  for (std::size_t i = 0; i < recordings_.size(); ++i) {
    executors_.push_back(std::make_unique<Executor>(*recordings_[i].tape, recordings_[i].plan, memory_));
    const Place dx = place_of(recordings_[i], dx_ids[i]);
    executors_.back()->watch([this, dx](std::size_t tick, const auto&, const auto& out) {
      if (tick == dx.tick) dx_now_ = to_floats(memory_.backend(), out[dx.output]);
    });
  }
}

void BlockBench::load_layer(const CapturedModel& model, std::int64_t layer) {
  for (const Parameter& p : layout_.parameters) {
    if (!p.name.starts_with("layers.0.")) continue;
    const Vector v = model.parameter(fmt::format("layers.{}.{}", layer, p.name.substr(9)));
    memory_.backend().copy_to_device(memory_.persistent(names::kParameters) + p.offset * 4, v.data(), std::ssize(v) * 4);
  }
  refresh_derived_weights(layout_, memory_);
}

void BlockBench::set_input(const CapturedBlock& c) {
  write("audit x", c.x);
  write("audit dy", c.dy);
  dy_ = &c.dy;
}

BlockGradients BlockBench::run(std::size_t policy, std::int64_t draw, std::int64_t seed) {
  const StepState state{.seed = static_cast<std::uint64_t>(seed), .step = draw, .inverse_targets = 1};
  const StepResult clear{};
  memory_.write(names::kState, &state, 1);
  memory_.write(names::kResult, &clear, 1);
  for (const Parameter* p : matrices()) {
    const Vector zeros(at(p->shape.elements()), 0.f);
    memory_.backend().copy_to_device(memory_.persistent(names::kGradients) + p->offset * 4, zeros.data(), std::ssize(zeros) * 4);
  }
  const auto start = std::chrono::steady_clock::now();
  executors_[policy]->run_micro_batch();
  BlockGradients g{.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  for (const Parameter* p : matrices()) {
    const std::size_t before = g.matrices.size();
    g.matrices.resize(before + at(p->shape.elements()));
    memory_.backend().copy_to_host(g.matrices.data() + before, memory_.persistent(names::kGradients) + p->offset * 4, p->shape.elements() * 4);
  }
  g.dx = std::move(dx_now_);
  for (std::size_t i = 0; i < g.dx.size(); ++i) g.dx[i] -= (*dy_)[i];
  return g;
}

Vector BlockBench::scores() const {
  const ScoreRange range = score_range(model_, 0, kind_);
  Vector all(at(range.offset + range.count));
  memory_.read(names::kScores, all.data(), std::ssize(all));
  return {all.begin() + range.offset, all.end()};
}

double BlockBench::flops(std::size_t policy) const {
  double sum = 0;
  for (const PlannedNode& n : recordings_[policy].plan.nodes) sum += n.cost.flops;
  return sum;
}

std::int64_t BlockBench::components() const { return score_range(model_, 0, kind_).count; }

std::vector<double> BlockBench::component_energy(const Vector& gradient) const {
  const std::int64_t n = components(), hd = model_.head_size(), per_group = model_.num_attention_heads / model_.kv_heads();
  const std::vector<std::vector<std::int64_t>> segments =  // rows of a component in each segment of each matrix
      kind_ == "attention" ? std::vector<std::vector<std::int64_t>>{{per_group * hd, hd, hd}, {per_group * hd}}
                           : std::vector<std::vector<std::int64_t>>{{1, 1}, {1}};
  std::vector<double> energy(at(n), 0.0);
  const float* row = gradient.data();
  for (const auto& matrix : segments)
    for (std::int64_t rows : matrix)
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t i = 0; i < rows * model_.hidden_size; ++i, ++row) energy[at(j)] += static_cast<double>(*row) * static_cast<double>(*row);
  return energy;
}

std::vector<const Parameter*> BlockBench::matrices() const {
  std::vector<const Parameter*> found;
  const bool attention = kind_ == "attention";
  for (const char* name : {attention ? "layers.0.qkv" : "layers.0.gate_up", attention ? "layers.0.o" : "layers.0.down"})
    for (const Parameter& p : layout_.parameters)
      if (p.name == name) found.push_back(&p);
  return found;
}

void BlockBench::write(const char* name, const Vector& v) {
  if (dtype_ == DType::f32) return memory_.write(name, v.data(), std::ssize(v));
  std::vector<std::uint16_t> upper(v.size());  // exact: the values were bf16
  for (std::size_t i = 0; i < v.size(); ++i) upper[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v[i]) >> 16);
  memory_.write(name, upper.data(), std::ssize(upper));
}

}  // namespace relume
