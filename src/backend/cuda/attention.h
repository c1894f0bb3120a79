// Which implementation forms attention: cuDNN where it takes the shape on the device at hand, else the kernels of attention.cu.
#pragma once
#include "relume/backend/kernels.h"

namespace relume::cuda {

// kernels/cuda/attention.cu
void plain_attention(const AttentionArgs&, Stream);
void plain_attention_gradient(const AttentionGradientArgs&, Stream);
std::int64_t plain_attention_gradient_workspace(const AttentionGradientArgs&);

}  // namespace relume::cuda
