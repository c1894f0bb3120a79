// Causal attention as cuDNN operation graphs, on its C interface: recorded once per shape, planned by cuDNN for the device.
#pragma once
#include <cudnn.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "relume/backend/kernels.h"

namespace relume::cuda {

/// An opaque cuDNN descriptor.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) { return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.raw_); }
  Descriptor& finalize(const char* what);
  [[nodiscard]] cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

/// What an operand of the graphs is, and the name by which it is given when they run.
enum class Operand : std::int64_t { kQuery = 1, kKey, kValue, kOut, kLse, kScale, kMasked, kDout, kDquery, kDkey, kDvalue, kOne, kDelta, kFirstTemporary = 100 };

/// Records operations, and keeps what they were: a test interprets them.
class CudnnGraph {
 public:
  using Extents = std::vector<std::int64_t>;
  struct TensorInfo {
    Extents extents, strides;
    cudnnDataType_t type;
    bool temporary, by_value;
  };
  enum class Kind { kMatmul, kPointwise, kReduction, kTranspose };
  struct Operation {
    Kind kind;
    int mode;                          ///< cuDNN's pointwise mode or reduction operator
    std::int64_t x, b, t, y, axis;     ///< operands; 0 = none
  };
  struct Tensor {
    const Descriptor* descriptor;
    Extents extents;
    std::int64_t id;
  };

  Tensor tensor(Operand operand, Extents extents, Extents strides, cudnnDataType_t type);
  Tensor scalar(Operand operand);
  Tensor temporary(Extents extents, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor matmul(Tensor a, Tensor b, Tensor y);
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, const Tensor* b, Tensor y, const Tensor* t = nullptr, std::int64_t axis = -1,
                   cudnnDataType_t precision = CUDNN_DATA_FLOAT);
  Tensor reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);
  /// The last two axes swapped; where a temporary takes another type.
  Tensor transpose(Tensor x, Extents strides, cudnnDataType_t type);

  /// Plans for the device of `handle`, or without one for the device that `description` describes. Throws kRuntime with cuDNN's words
  /// if no engine takes the graph.
  [[nodiscard]] Descriptor plan(cudnnHandle_t handle, const Descriptor* description = nullptr);

  [[nodiscard]] const std::map<std::int64_t, TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<Operation>& operations() const { return operations_; }

 private:
  Descriptor& add(cudnnBackendDescriptorType_t type) { return kept_.emplace_back(type); }
  Tensor make(std::int64_t id, Extents extents, Extents strides, cudnnDataType_t type, bool temporary, bool by_value);
  void append(const Descriptor& operation, Operation record);

  std::deque<Descriptor> kept_;  // descriptors refer to each other by address
  std::vector<cudnnBackendDescriptor_t> raw_operations_;
  std::map<std::int64_t, TensorInfo> tensors_;
  std::vector<Operation> operations_;
  std::int64_t next_ = static_cast<std::int64_t>(Operand::kFirstTemporary);
};

/// Attention of `sequences` sequences on packed bf16 qkv: query, key and value are given as pointers into it.
[[nodiscard]] CudnnGraph attention_graph(const AttentionLayout& layout, std::int64_t sequences);
/// Its gradient, written with the strides of qkv. dq comes straight from its product, so the same bits every time, at the cost of
/// sequences * heads * tokens^2 * 2 bytes of workspace.
[[nodiscard]] CudnnGraph attention_gradient_graph(const AttentionLayout& layout, std::int64_t sequences);

/// Bytes of scratch of a plan.
[[nodiscard]] std::int64_t workspace_of(const Descriptor& plan);

/// Whether a device is there whose cuDNN takes this attention; the plan is made then, and kept.
[[nodiscard]] bool cudnn_takes(const AttentionArgs& args);
[[nodiscard]] bool cudnn_takes(const AttentionGradientArgs& args);
[[nodiscard]] std::int64_t cudnn_workspace(const AttentionArgs& args);
[[nodiscard]] std::int64_t cudnn_workspace(const AttentionGradientArgs& args);
void cudnn_run(const AttentionArgs& args, Stream stream);
void cudnn_run(const AttentionGradientArgs& args, Stream stream);

}  // namespace relume::cuda
