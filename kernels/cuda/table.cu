// The kernel table of the CUDA backend.
#include "cuda.cuh"

namespace relume::cuda {

extern const KernelTable kKernelTable;
const KernelTable kKernelTable{
    .add = {add},
    .embedding = {embedding},
    .embedding_gradient = {embedding_gradient},
    .rms_norm = {rms_norm},
    .rms_norm_gradient = {rms_norm_gradient, rms_norm_gradient_workspace},
    .matmul = {matmul, matmul_workspace},
    .matmul_variants = {},
    .rope = {rope},
    .attention = {attention, attention_workspace},
    .attention_gradient = {attention_gradient, attention_gradient_workspace},
    .cached_attention = {cached_attention},
    .swiglu = {swiglu},
    .swiglu_gradient = {swiglu_gradient},
    .linear_cross_entropy = {linear_cross_entropy, linear_cross_entropy_workspace},
    .gather_components = {gather_components},
    .scatter_add_components = {scatter_add_components},
    .scale_components = {scale_components},
    .component_scores = {component_scores, component_scores_workspace},
    .select_top_k = {select_top_k},
    .select_sketch = {select_sketch},
    .sum_of_squares = {sum_of_squares, sum_of_squares_workspace},
    .adamw = {adamw},
    .round_to_bf16 = {round_to_bf16},
};

}  // namespace relume::cuda
