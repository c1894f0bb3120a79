// A training step as data: values, the nodes that make them, and blocks whose backward follows a policy.
// Recording computes nothing and allocates no device memory; shapes are static.
#pragma once
#include <any>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "relume/tape/op_def.h"

namespace relume {

/// A handle to a value on a tape. Cheap to copy; absent when default-made.
struct Tensor {
  Tape* tape = nullptr;
  int id = -1;

  explicit operator bool() const { return id >= 0; }
  [[nodiscard]] const Shape& shape() const;
  [[nodiscard]] DType dtype() const;
  [[nodiscard]] const std::string& name() const;
};

enum class Role : std::uint8_t {
  kPlanned,    ///< lives in the arena, from its first to its last use in a step
  kParameter,  ///< this and all below are persistent: a fixed address for the whole run
  kGradient,
  kOptimizer,
  kInput,      ///< written by the host before a step, or read after it
  kConstant,
};

struct Value {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::kPlanned;
  int producer = -1;               ///< node that makes it; -1 for persistent values
  int alias = -1;                  ///< shares the storage of this value, alias_offset_bytes into it
  std::int64_t alias_offset_bytes = 0;
  int may_alias = -1;              ///< value whose storage it may take (see OutputSpec)
  bool kept = true;                ///< false: backward recomputes it instead of reading it

  [[nodiscard]] bool persistent() const { return role != Role::kPlanned; }
  [[nodiscard]] std::int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

enum class Phase : std::uint8_t { kForward, kBackward, kUpdate };

struct Node {
  const OpDef* op;
  std::vector<int> in, out;  ///< value ids; -1 for an absent optional input
  std::any attributes;
  Phase phase;
  int block;       ///< index into Tape::blocks, -1 outside blocks
  bool recompute;  ///< computes again what the forward had already computed (or the reduced form of it)
};

/// Components chosen for a reduced block: indices (k) i32 ascending; weights (k), absent when all are 1.
struct Selection {
  Tensor indices, weights;
};

/// What a block builder recorded: its output, and where its components are: columns of `components` that meet rows of
/// `weight`, `columns` of them a component.
struct BlockRecord {
  Tensor out, components, weight;
  std::int64_t columns = 1;
};

/// Records one sublayer on all components, or on a selection: y = x + sum over j of w_j component_j(x).
using BlockBuilder = std::function<BlockRecord(Tensor x, const Selection* selection)>;

/// A block and how its backward is formed.
struct BlockSpec {
  int layer = 0;
  std::string kind;             ///< "attention" or "ffn"
  BlockBuilder build;
  bool keep_all = true;
  std::set<std::string> keep = {};  ///< names of values backward may read, unless keep_all
  bool keep_output = true;      ///< false: the block output is recomputed too
  /// Approximate policies: what the forward leaves for the choice (scores), and the choice made from it in backward.
  std::function<Tensor(const BlockRecord&)> profile = {};
  std::function<Selection(Tensor profile)> select = {};
};

struct Block {
  BlockSpec spec;
  int first = 0, last = 0;  ///< nodes [first, last) of the forward
  Tensor in = {}, out = {}, profile = {};
};

class Tape {
 public:
  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// A value with a fixed address. The name identifies its storage: tapes that share memory share it by name.
  Tensor persistent(std::string name, Shape shape, DType dtype, Role role);
  /// Part of a persistent value, starting `offset` elements in.
  Tensor view(Tensor base, std::int64_t offset, Shape shape, std::string name);
  /// Declares where the gradient of a parameter accumulates; later the latest version of it.
  void set_accumulator(Tensor parameter, Tensor gradient) { accumulator_[parameter.id] = gradient; }
  /// Absent if the value is no parameter.
  [[nodiscard]] Tensor accumulator(Tensor parameter) const;

  /// Appends a node. Throws what op.infer throws.
  std::vector<Tensor> emit(const OpDef& op, std::vector<Tensor> inputs, std::any attributes = {});
  /// Names a value; policies keep values by name.
  Tensor name(Tensor t, std::string name);
  /// Records a block on all components and returns its output.
  Tensor block(BlockSpec spec, Tensor x);
  /// Appends the gradient nodes of `loss`, whose op forms its own gradients (linear_cross_entropy), and counts it as read.
  void backward(Tensor loss);
  /// Appends the gradient nodes for given gradients of some outputs.
  void backward(const std::vector<std::pair<Tensor, Tensor>>& output_gradients);
  /// Gradient contributed to a value that is no parameter; absent if none.
  [[nodiscard]] Tensor gradient(Tensor t) const;
  /// Nodes emitted from here on run once a step, after all micro-batches.
  void begin_update() { phase_ = Phase::kUpdate; }

  /// A value that must be computed even if no node reads it.
  void keep_result(Tensor t) { results_.insert(t.id); }

  [[nodiscard]] const std::vector<Value>& values() const { return values_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  [[nodiscard]] const std::set<int>& results() const { return results_; }
  /// The value that owns the storage of v, and v's offset in it.
  [[nodiscard]] std::pair<int, std::int64_t> storage_of(int v) const;
  /// "layer 3 ffn gate_up" where that is known, for messages and reports.
  [[nodiscard]] std::string describe(int value) const;

 private:
  friend class Vjp;
  Tensor add_value(Value value);
  Tensor need(int value);
  void differentiate(int first, int last);
  void differentiate_reduced(const Block& block);
  void mark_kept(const Block& block);

  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<Block> blocks_;
  std::set<int> results_;
  std::unordered_map<int, Tensor> accumulator_;  // parameter -> latest version of its gradient
  std::unordered_map<int, Tensor> gradient_;     // value -> sum of contributions
  std::unordered_map<int, int> twin_;            // dropped value -> its recomputation, while it may be used
  Phase phase_ = Phase::kForward;
  int block_ = -1;
  bool recompute_ = false;
};

inline const Shape& Tensor::shape() const { return tape->values()[static_cast<std::size_t>(id)].shape; }
inline DType Tensor::dtype() const { return tape->values()[static_cast<std::size_t>(id)].dtype; }
inline const std::string& Tensor::name() const { return tape->values()[static_cast<std::size_t>(id)].name; }

}  // namespace relume
