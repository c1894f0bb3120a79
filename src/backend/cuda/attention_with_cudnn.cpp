#include "attention.h"

#include "cudnn_attention.h"

namespace relume::cuda {

void attention(const AttentionArgs& args, Stream stream) { cudnn_takes(args) ? cudnn_run(args, stream) : plain_attention(args, stream); }

std::int64_t attention_workspace(const AttentionArgs& args) { return cudnn_takes(args) ? cudnn_workspace(args) : 0; }

void attention_gradient(const AttentionGradientArgs& args, Stream stream) {
  cudnn_takes(args) ? cudnn_run(args, stream) : plain_attention_gradient(args, stream);
}

std::int64_t attention_gradient_workspace(const AttentionGradientArgs& args) {
  return cudnn_takes(args) ? cudnn_workspace(args) : plain_attention_gradient_workspace(args);
}

}  // namespace relume::cuda
