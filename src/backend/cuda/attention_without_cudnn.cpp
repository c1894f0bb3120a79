// In the place of attention_with_cudnn.cpp in a build without cuDNN, and on the emulator.
#include "attention.h"

namespace relume::cuda {

void attention(const AttentionArgs& args, Stream stream) { plain_attention(args, stream); }

std::int64_t attention_workspace(const AttentionArgs&) { return 0; }

void attention_gradient(const AttentionGradientArgs& args, Stream stream) { plain_attention_gradient(args, stream); }

std::int64_t attention_gradient_workspace(const AttentionGradientArgs& args) { return plain_attention_gradient_workspace(args); }

}  // namespace relume::cuda
