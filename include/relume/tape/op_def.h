// What an op is: one record of functions. The tape, the planner, the cost report and the executor read it; nothing
// switches over ops.
#pragma once
#include <any>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "relume/backend/kernels.h"
#include "relume/base/cost.h"

namespace relume {

class Tape;
struct Tensor;
struct OpDef;

/// One output of a node.
struct OutputSpec {
  Shape shape;
  DType dtype = DType::f32;
  int alias = -1;      ///< input whose storage the output takes, always: accumulation in place
  int may_alias = -1;  ///< input whose storage the planner may give to the output if nothing reads that input later
};

/// What infer sees: operands without contents. Its failure messages start with the op's name.
class InferContext {
 public:
  InferContext(const OpDef& op, std::span<const Tensor> inputs, const std::any& attributes)
      : op_(op), inputs_(inputs), attributes_(attributes) {}

  [[nodiscard]] bool has(int i) const;
  [[nodiscard]] const Shape& shape(int i) const;
  [[nodiscard]] DType dtype(int i) const;
  template <class A>
  [[nodiscard]] const A& attributes() const {
    return std::any_cast<const A&>(attributes_);
  }

  /// Each throws kInvalidArgument "[op] operand must …; expected …, got …" if input i is not as asked.
  void require(bool condition, const std::string& message) const;
  void require_shape(int i, std::string_view operand, const Shape& expected) const;
  void require_rank(int i, std::string_view operand, int rank) const;
  void require_dtype(int i, std::string_view operand, DType expected) const;
  void require_floating(int i, std::string_view operand) const;

 private:
  const OpDef& op_;
  std::span<const Tensor> inputs_;
  const std::any& attributes_;
};

/// What cost and run see: operands as views. While costing, views have no data and there is no workspace.
struct NodeContext {
  std::span<const TensorView> in, out;  ///< absent optional operands have rank 0 and no data
  const std::any& attributes_any;
  const KernelTable& kernels;
  Stream stream;
  void* workspace = nullptr;

  template <class A>
  [[nodiscard]] const A& attributes() const {
    return std::any_cast<const A&>(attributes_any);
  }
  /// Bytes of all operands and results, each once: the read and written bytes of ops that stream.
  [[nodiscard]] double bytes_in() const;
  [[nodiscard]] double bytes_out() const;
};

/// What a gradient rule sees. It asks for the values it reads, and that request decides what is saved or recomputed.
class Vjp {
 public:
  Vjp(Tape& tape, int node) : tape_(tape), node_(node) {}

  /// The input or output value itself if it was kept, else its recomputation, emitted now.
  [[nodiscard]] Tensor in(int i);
  [[nodiscard]] Tensor out(int i);
  [[nodiscard]] bool has_in(int i) const;
  [[nodiscard]] Shape in_shape(int i) const;
  /// Gradient of output i, absent if nothing downstream depends on it.
  [[nodiscard]] Tensor dout(int i) const;
  /// A copy: rules emit nodes, and that moves the ones there are.
  template <class A>
  [[nodiscard]] A attributes() const {
    return std::any_cast<const A&>(attributes_any());
  }

  /// Contributes to the gradient of input i; several contributions are summed.
  void add(int i, Tensor gradient);
  /// The sum contributed to input i so far, taken away: for rules that add to it in their own kernel. May be absent.
  [[nodiscard]] Tensor take_gradient(int i);
  /// The persistent accumulator of parameter input i, absent for other values; a rule that adds to it in place reports the
  /// new version.
  [[nodiscard]] Tensor accumulator(int i) const;
  void set_accumulator(int i, Tensor accumulated);

  [[nodiscard]] Tape& tape() const { return tape_; }

 private:
  [[nodiscard]] const std::any& attributes_any() const;
  Tape& tape_;
  int node_;
};

using InferFn = std::vector<OutputSpec> (*)(const InferContext&);
using VjpFn = void (*)(Vjp&);
using CostFn = Cost (*)(const NodeContext&);
using RunFn = void (*)(const NodeContext&);

struct OpDef {
  std::string_view name;
  InferFn infer;  ///< all validation; output shapes and dtypes; throws Error
  VjpFn vjp;      ///< appends gradient nodes; null = not differentiable (throws, never a silent zero)
  CostFn cost;    ///< flops, bytes read, bytes written, workspace bytes
  RunFn run;      ///< unpacks the node and calls one kernel of the backend's table
};

}  // namespace relume
