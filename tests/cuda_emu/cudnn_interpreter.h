#pragma once
#include <cstdint>
#include <vector>

#include "relume/backend/kernels.h"

namespace relume::test {

/// What the recorded cuDNN graphs of attention compute, interpreted on the CPU with their strides and bf16 rounding: out and lse from qkv,
/// dqkv from dout. False where the build has no cuDNN.
[[nodiscard]] bool interpret_cudnn_attention(const AttentionLayout& layout, std::int64_t sequences, const std::vector<float>& qkv, const std::vector<float>& dout,
                                             std::vector<float>& out, std::vector<float>& dqkv);

}  // namespace relume::test
