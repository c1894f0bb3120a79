#include "relume/tape/tape.h"

#include <fmt/format.h>

#include "relume/base/check.h"
#include "relume/base/error.h"

namespace relume {

extern const OpDef kAdd;  // ops/add.cpp: the one op the tape itself emits, to sum contributions to a gradient

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

Tensor Tape::add_value(Value value) {
  values_.push_back(std::move(value));
  return {this, static_cast<int>(values_.size()) - 1};
}

Tensor Tape::persistent(std::string name, Shape shape, DType dtype, Role role) {
  CHECK(role != Role::kPlanned);
  return add_value({.name = std::move(name), .shape = shape, .dtype = dtype, .role = role});
}

Tensor Tape::view(Tensor base, std::int64_t offset, Shape shape, std::string name) {
  const Value& whole = values_[at(base.id)];
  CHECK(whole.persistent() && offset >= 0 && offset + shape.elements() <= whole.shape.elements());
  return add_value({.name = std::move(name),
                    .shape = shape,
                    .dtype = whole.dtype,
                    .role = whole.role,
                    .alias = base.id,
                    .alias_offset_bytes = offset * size_of(whole.dtype)});
}

std::vector<Tensor> Tape::emit(const OpDef& op, std::vector<Tensor> inputs, std::any attributes) {
  for (Tensor t : inputs) CHECK(!t || t.tape == this);
  const std::vector<OutputSpec> specs = op.infer(InferContext(op, inputs, attributes));
  Node node{&op, {}, {}, std::move(attributes), phase_, block_, recompute_};
  for (Tensor t : inputs) node.in.push_back(t.id);
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : specs) {
    Value v{.name = std::string(op.name), .shape = spec.shape, .dtype = spec.dtype, .producer = static_cast<int>(nodes_.size())};
    if (spec.alias >= 0) {
      v.alias = node.in[at(spec.alias)];
      v.role = values_[at(v.alias)].role;
      v.name = values_[at(v.alias)].name;
      CHECK(v.bytes() == values_[at(v.alias)].bytes());
    }
    if (spec.may_alias >= 0) v.may_alias = node.in[at(spec.may_alias)];
    outputs.push_back(add_value(std::move(v)));
    node.out.push_back(outputs.back().id);
  }
  nodes_.push_back(std::move(node));
  return outputs;
}

Tensor Tape::name(Tensor t, std::string name) {
  values_[at(t.id)].name = std::move(name);
  return t;
}

std::pair<int, std::int64_t> Tape::storage_of(int v) const {
  std::int64_t offset = 0;
  while (values_[at(v)].alias >= 0) {
    offset += values_[at(v)].alias_offset_bytes;
    v = values_[at(v)].alias;
  }
  return {v, offset};
}

std::string Tape::describe(int value) const {
  const Value& v = values_[at(value)];
  const int block = v.producer >= 0 ? nodes_[at(v.producer)].block : -1;
  if (block < 0) return v.name;
  return fmt::format("layer {} {} {}", blocks_[at(block)].spec.layer, blocks_[at(block)].spec.kind, v.name);
}

// --- blocks ---------------------------------------------------------------------------------------------------------

Tensor Tape::block(BlockSpec spec, Tensor x) {
  CHECK(block_ < 0);
  block_ = static_cast<int>(blocks_.size());
  Block block{.spec = std::move(spec), .first = static_cast<int>(nodes_.size()), .in = x};
  blocks_.push_back(block);
  const BlockRecord record = block.spec.build(x, nullptr);
  block.last = static_cast<int>(nodes_.size());
  block.out = record.out;
  mark_kept(block);
  if (block.spec.select) block.profile = block.spec.profile(record);
  blocks_.back() = std::move(block);
  block_ = -1;
  return record.out;
}

// All outputs of a node share its fate: statistics (rstd, lse) are kept or recomputed with the value they belong to.
void Tape::mark_kept(const Block& block) {
  for (int i = block.first; i < block.last; ++i) {
    bool kept = block.spec.keep_all;
    for (int v : nodes_[at(i)].out) kept |= block.spec.keep.count(values_[at(v)].name) > 0;
    for (int v : nodes_[at(i)].out) values_[at(v)].kept = v == block.out.id ? block.spec.keep_output : kept;
  }
}

/// The value itself where it was kept, else a clone of the node that makes it, on inputs found the same way.
Tensor Tape::need(int value) {
  if (values_[at(value)].persistent() || values_[at(value)].kept) return {this, value};
  if (const auto it = twin_.find(value); it != twin_.end()) return {this, it->second};
  const Node original = nodes_[at(values_[at(value)].producer)];
  std::vector<Tensor> inputs;
  for (int v : original.in) inputs.push_back(v < 0 ? Tensor{} : need(v));
  const bool outer = std::exchange(recompute_, true);
  const int outer_block = std::exchange(block_, original.block);
  const std::vector<Tensor> outputs = emit(*original.op, inputs, original.attributes);
  recompute_ = outer;
  block_ = outer_block;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    name(outputs[i], values_[at(original.out[i])].name);
    twin_[original.out[i]] = outputs[i].id;
  }
  return {this, twin_.at(value)};
}

// --- backward -------------------------------------------------------------------------------------------------------

void Tape::differentiate(int first, int last) {
  for (int i = last - 1; i >= first; --i) {
    bool reached = false;
    for (int v : nodes_[at(i)].out) reached |= gradient_.count(v) > 0;
    if (!reached) continue;
    const OpDef& op = *nodes_[at(i)].op;
    if (!op.vjp) throw Error(ErrorCode::kInvalidArgument, fmt::format("[{}] is not differentiable", op.name));
    block_ = nodes_[at(i)].block;
    Vjp rule(*this, i);
    op.vjp(rule);
  }
  block_ = -1;
}

/// Records the block again on the chosen components and differentiates that. Its output is never read, so pruning removes
/// the last projection.
void Tape::differentiate_reduced(const Block& block) {
  block_ = nodes_[at(block.first)].block;
  const Selection selection = block.spec.select(block.profile);
  const int first = static_cast<int>(nodes_.size());
  recompute_ = true;
  const Tensor y = block.spec.build(block.in, &selection).out;
  recompute_ = false;
  gradient_[y.id] = gradient_.at(block.out.id);
  differentiate(first, values_[at(y.id)].producer + 1);
}

void Tape::backward(Tensor loss) {
  keep_result(loss);
  backward({{loss, Tensor{}}});
}

void Tape::backward(const std::vector<std::pair<Tensor, Tensor>>& output_gradients) {
  phase_ = Phase::kBackward;
  for (const auto& [output, gradient] : output_gradients) gradient_[output.id] = gradient;
  int end = static_cast<int>(nodes_.size());
  for (std::size_t b = blocks_.size(); b-- > 0;) {
    const Block block = blocks_[b];  // by value: nodes and blocks grow while differentiating
    differentiate(block.last, end);
    if (gradient_.count(block.out.id)) {
      if (block.spec.select)
        differentiate_reduced(block);
      else
        differentiate(block.first, block.last);
    }
    // Recomputed values live for one block, or as long as the input of the next one is recomputed too.
    if (values_[at(block.in.id)].persistent() || values_[at(block.in.id)].kept) twin_.clear();
    end = block.first;
  }
  differentiate(0, end);
  twin_.clear();
}

Tensor Tape::accumulator(Tensor parameter) const {
  const auto it = accumulator_.find(parameter.id);
  return it == accumulator_.end() ? Tensor{} : it->second;
}

Tensor Tape::gradient(Tensor t) const {
  const auto it = gradient_.find(t.id);
  return it == gradient_.end() ? Tensor{} : it->second;
}

// --- what gradient rules see ------------------------------------------------------------------------------------------

Tensor Vjp::in(int i) { return tape_.need(tape_.nodes_[at(node_)].in[at(i)]); }
Tensor Vjp::out(int i) { return tape_.need(tape_.nodes_[at(node_)].out[at(i)]); }
bool Vjp::has_in(int i) const { return tape_.nodes_[at(node_)].in[at(i)] >= 0; }
Shape Vjp::in_shape(int i) const { return tape_.values_[at(tape_.nodes_[at(node_)].in[at(i)])].shape; }
const std::any& Vjp::attributes_any() const { return tape_.nodes_[at(node_)].attributes; }

Tensor Vjp::dout(int i) const {
  const auto it = tape_.gradient_.find(tape_.nodes_[at(node_)].out[at(i)]);
  return it == tape_.gradient_.end() ? Tensor{} : it->second;
}

void Vjp::add(int i, Tensor gradient) {
  const int v = tape_.nodes_[at(node_)].in[at(i)];
  CHECK(gradient);
  if (const Value& g = tape_.values_[at(gradient.id)]; g.producer >= 0 && g.name == tape_.nodes_[at(g.producer)].op->name)
    tape_.name(gradient, "d " + tape_.values_[at(v)].name);
  auto [it, first] = tape_.gradient_.try_emplace(v, gradient);
  if (!first) it->second = tape_.emit(kAdd, {it->second, gradient})[0];
}

Tensor Vjp::take_gradient(int i) {
  const auto it = tape_.gradient_.find(tape_.nodes_[at(node_)].in[at(i)]);
  if (it == tape_.gradient_.end()) return {};
  const Tensor t = it->second;
  tape_.gradient_.erase(it);
  return t;
}

Tensor Vjp::accumulator(int i) const { return tape_.accumulator({&tape_, tape_.nodes_[at(node_)].in[at(i)]}); }

void Vjp::set_accumulator(int i, Tensor accumulated) { tape_.accumulator_[tape_.nodes_[at(node_)].in[at(i)]] = accumulated; }

}  // namespace relume
