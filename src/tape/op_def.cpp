#include "relume/tape/op_def.h"

#include <fmt/format.h>

#include "relume/base/error.h"
#include "relume/tape/tape.h"

namespace relume {

bool InferContext::has(int i) const {
  return static_cast<std::size_t>(i) < inputs_.size() && static_cast<bool>(inputs_[static_cast<std::size_t>(i)]);
}
const Shape& InferContext::shape(int i) const { return inputs_[static_cast<std::size_t>(i)].shape(); }
DType InferContext::dtype(int i) const { return inputs_[static_cast<std::size_t>(i)].dtype(); }

void InferContext::require(bool condition, const std::string& message) const {
  if (!condition) throw Error(ErrorCode::kInvalidArgument, fmt::format("[{}] {}", op_.name, message));
}

void InferContext::require_shape(int i, std::string_view operand, const Shape& expected) const {
  require(shape(i) == expected, fmt::format("{} has the wrong shape; expected {}, got {}", operand, expected.to_string(), shape(i).to_string()));
}

void InferContext::require_rank(int i, std::string_view operand, int rank) const {
  require(shape(i).rank() == rank, fmt::format("{} must have {} axes, got {}", operand, rank, shape(i).to_string()));
}

void InferContext::require_dtype(int i, std::string_view operand, DType expected) const {
  require(dtype(i) == expected, fmt::format("{} has the wrong dtype; expected {}, got {}", operand, to_string(expected), to_string(dtype(i))));
}

void InferContext::require_floating(int i, std::string_view operand) const {
  require(is_floating(dtype(i)), fmt::format("{} must be floating point, got {}", operand, to_string(dtype(i))));
}

namespace {
double total_bytes(std::span<const TensorView> views) {
  double bytes = 0;
  for (const TensorView& v : views)
    if (v.shape.rank() > 0) bytes += static_cast<double>(v.bytes());
  return bytes;
}
}  // namespace

double NodeContext::bytes_in() const { return total_bytes(in); }
double NodeContext::bytes_out() const { return total_bytes(out); }

}  // namespace relume
