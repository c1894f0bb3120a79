// Global gradient norm and AdamW over flat lists of parameters.
#include "cuda.cuh"

namespace relume::cuda {

namespace {

constexpr std::int64_t kSpan = 1 << 16;  // elements of a partial sum, whatever the device

__global__ void __launch_bounds__(kThreads) squares_kernel(const float* x, double* partial, std::int64_t n) {
  const std::int64_t begin = blockIdx.x * kSpan, end = n - begin < kSpan ? n : begin + kSpan;
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const double* partial, double* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) sum += partial[i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *y = sum;
}

struct Adamw {
  std::int64_t elements, decayed, rounded;
  float beta1, beta2, eps;
  double beta1_double, beta2_double, weight_decay, grad_clip;
};

__device__ __forceinline__ bool finite(const StepResult& r, double norm) { return norm - norm == 0 && r.nll - r.nll == 0 && r.bad_scores == 0; }  // x - x is no number if x is not finite

/// What all elements of an update share.
struct Scalars {
  float clip, step, correction, keep;
  int apply;
};

__global__ void __launch_bounds__(kThreads) adamw_kernel(const double* squares, const StepState* state, const StepResult* result, float* gradient, float* weight, float* m,
                                                         float* v, Bf16* rounded, Adamw a) {
  __shared__ Scalars shared;
  if (threadIdx.x == 0) {
    const double norm = sqrt(*squares), t = static_cast<double>(result->updates + 1);
    shared.apply = finite(*result, norm);
    shared.clip = a.grad_clip > 0 ? static_cast<float>(fmin(1.0, a.grad_clip / (norm + 1e-6))) : 1.f;
    shared.step = static_cast<float>(state->learning_rate / (1 - pow(a.beta1_double, t)));
    shared.correction = static_cast<float>(1 / (1 - pow(a.beta2_double, t)));
    shared.keep = static_cast<float>(1 - state->learning_rate * a.weight_decay);
  }
  __syncthreads();
  const Scalars s = shared;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < a.elements; i += std::int64_t{gridDim.x} * kThreads) {
    const float g = gradient[i] * s.clip;
    gradient[i] = 0;
    if (!s.apply) continue;
    const float mean = a.beta1 * m[i] + (1.f - a.beta1) * g, square = a.beta2 * v[i] + (1.f - a.beta2) * g * g;
    m[i] = mean;
    v[i] = square;
    const float w = weight[i] * (i < a.decayed ? s.keep : 1.f) - s.step * mean / (sqrtf(square * s.correction) + a.eps);
    weight[i] = w;
    if (i < a.rounded) put(rounded[i], w);
  }
}

/// After the update, which reads what this changes.
__global__ void adamw_result_kernel(const double* squares, StepResult* result) {
  const double norm = sqrt(*squares);
  result->gradient_norm = norm;
  if (finite(*result, norm))
    ++result->updates;
  else
    result->skipped = 1;
}

__global__ void __launch_bounds__(kThreads) round_kernel(const float* x, Bf16* y, std::int64_t n) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kThreads) put(y[i], x[i]);
}

}  // namespace

std::int64_t sum_of_squares_workspace(const SumOfSquaresArgs& args) { return (args.x.shape.elements() + kSpan - 1) / kSpan * 8; }

void sum_of_squares(const SumOfSquaresArgs& args, Stream stream) {
  const std::int64_t n = args.x.shape.elements(), spans = (n + kSpan - 1) / kSpan;
  auto* partial = static_cast<double*>(args.workspace);
  start("sum_of_squares", squares_kernel, static_cast<unsigned>(spans), kThreads, 0, stream, args.x.as<const float>(), partial, n);
  start("sum_of_squares", sum_kernel, 1u, kThreads, 0, stream, static_cast<const double*>(partial), args.y.as<double>(), spans);
}

void adamw(const AdamwArgs& args, Stream stream) {
  Adamw a{};
  a.elements = args.weight.shape.elements();
  a.decayed = args.decayed;
  a.rounded = args.rounded.data ? args.rounded.shape.elements() : 0;
  a.beta1 = static_cast<float>(args.beta1);
  a.beta2 = static_cast<float>(args.beta2);
  a.eps = static_cast<float>(args.eps);
  a.beta1_double = args.beta1;
  a.beta2_double = args.beta2;
  a.weight_decay = args.weight_decay;
  a.grad_clip = args.grad_clip;
  start("adamw", adamw_kernel, blocks_for(a.elements), kThreads, 0, stream, args.squares.as<const double>(), args.state.as<const StepState>(),
        args.result.as<const StepResult>(), args.gradient.as<float>(), args.weight.as<float>(), args.m.as<float>(), args.v.as<float>(), args.rounded.as<Bf16>(), a);
  start("adamw", adamw_result_kernel, 1u, 1, 0, stream, args.squares.as<const double>(), args.result.as<StepResult>());
}

void round_to_bf16(const RoundToBf16Args& args, Stream stream) {
  const std::int64_t n = args.y.shape.elements();
  start("round_to_bf16", round_kernel, blocks_for(n), kThreads, 0, stream, args.x.as<const float>(), args.y.as<Bf16>(), n);
}

}  // namespace relume::cuda
