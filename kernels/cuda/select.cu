// Choice of components on the device: one block, no word to the host. The arithmetic is that of relume/base/selection.h.
#include "cuda.cuh"
#include "relume/base/philox.h"
#include "relume/base/selection.h"

namespace relume::cuda {

namespace {

constexpr int kSelectThreads = 512;

/// Whether any score is negative, infinite or not a number; if so the step will be skipped, and the first k are as good as any.
template <class F>
__device__ __forceinline__ bool refuse_bad_scores(const float* scores, std::int64_t n, std::int64_t k, StepResult* result, std::int32_t* indices, F&& also) {
  int bad = 0;
  for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) bad |= is_bad_score(scores[j]);
  if (!__syncthreads_or(bad)) return false;
  if (threadIdx.x == 0) ++result->bad_scores;
  for (std::int64_t i = threadIdx.x; i < k; i += kSelectThreads) {
    indices[i] = static_cast<std::int32_t>(i);
    also(i);
  }
  return true;
}

/// Bits of floats >= 0 are ordered like the floats: the k-th largest is found bit by bit.
__global__ void __launch_bounds__(kSelectThreads) select_top_k_kernel(const float* scores, StepResult* result, std::int32_t* indices, std::int64_t n, std::int64_t k) {
  if (refuse_bad_scores(scores, n, k, result, indices, [](std::int64_t) {})) return;
  unsigned threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const unsigned candidate = threshold | 1u << bit;
    int at_least = 0;
    for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) at_least += static_cast<unsigned>(__float_as_int(scores[j])) >= candidate;
    if (block_sum<kSelectThreads>(at_least) >= k) threshold = candidate;
  }
  int above = 0;
  for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) above += static_cast<unsigned>(__float_as_int(scores[j])) > threshold;
  const std::int64_t ties = k - block_sum<kSelectThreads>(above);
  std::int64_t taken = 0, equal = 0;  // before this stretch of scores
  for (std::int64_t begin = 0; begin < n; begin += kSelectThreads) {
    const std::int64_t j = begin + threadIdx.x;
    const unsigned bits = j < n ? static_cast<unsigned>(__float_as_int(scores[j])) : 0;
    const int tie = j < n && bits == threshold;
    int all_ties, all_taken;
    const int ties_before = block_prefix<kSelectThreads>(tie, all_ties);
    const int take = j < n && (bits > threshold || (tie && equal + ties_before < ties));
    const int before = block_prefix<kSelectThreads>(take, all_taken);
    if (take) indices[taken + before] = static_cast<std::int32_t>(j);
    taken += all_taken;
    equal += all_ties;
  }
}

__global__ void __launch_bounds__(kSelectThreads) select_sketch_kernel(const float* scores, const StepState* state, StepResult* result, std::int32_t* indices, float* weights,
                                                                       std::int32_t* probabilities, std::int64_t n, std::int64_t k, double floor, std::int64_t layer,
                                                                       std::int64_t block) {
  if (refuse_bad_scores(scores, n, k, result, indices, [&](std::int64_t i) { weights[i] = 1; })) return;
  float top = 0;
  for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) top = scores[j] > top ? scores[j] : top;
  const double largest = static_cast<double>(block_max<kSelectThreads>(top));
  double low = static_cast<double>(k) / static_cast<double>(n), high = 1e12;
  for (int i = 0; i < 100; ++i) {
    const double middle = sqrt(low * high);
    if (middle == low || middle == high) break;  // further halvings change nothing
    double sum = 0;
    for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) sum += filled_probability(middle, scores[j], largest, floor);
    (block_sum<kSelectThreads>(sum) < static_cast<double>(k) ? low : high) = middle;
  }
  long long given = 0;
  for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) {
    probabilities[j] = drawn_units(filled_probability(low, scores[j], largest, floor));
    given += probabilities[j];
  }
  given = block_sum<kSelectThreads>(given);
  if (threadIdx.x == 0) spread_residue(probabilities, n, k * static_cast<std::int64_t>(kDrawUnit) - given);
  __syncthreads();
  constexpr char kStream[] = "sketch";
  const PhiloxBlock random = philox(stream_key(state->seed, kStream, sizeof(kStream) - 1), static_cast<std::uint64_t>(state->step),
                                    static_cast<std::uint64_t>(layer) << 8 | static_cast<std::uint64_t>(block));
  const std::uint64_t offset = coordinated_offset(random.word[0] % kDrawUnit, static_cast<std::uint64_t>(state->micro_batch),
                                                  static_cast<std::uint64_t>(state->micro_batches)) % kDrawUnit;
  unsigned long long sum = offset;  // before this stretch
  for (std::int64_t begin = 0; begin < n; begin += kSelectThreads) {
    const std::int64_t j = begin + threadIdx.x;
    const unsigned long long p = j < n ? static_cast<unsigned long long>(probabilities[j]) : 0;
    unsigned long long all;
    const unsigned long long before = sum + block_prefix<kSelectThreads>(p, all);
    const auto slot = static_cast<std::int64_t>(before / kDrawUnit);  // components taken so far
    if (j < n && (before + p) / kDrawUnit != before / kDrawUnit && slot < k) {
      indices[slot] = static_cast<std::int32_t>(j);
      weights[slot] = static_cast<float>(static_cast<double>(kDrawUnit) / static_cast<double>(p));
    }
    sum += all;
  }
}

}  // namespace

void select_top_k(const SelectTopKArgs& args, Stream stream) {
  start("select_top_k", select_top_k_kernel, 1u, kSelectThreads, 0, stream, args.scores.as<const float>(), args.result.as<StepResult>(), args.indices.as<std::int32_t>(),
        args.scores.shape[0], args.indices.shape[0]);
}

void select_sketch(const SelectSketchArgs& args, Stream stream) {
  start("select_sketch", select_sketch_kernel, 1u, kSelectThreads, 0, stream, args.scores.as<const float>(), args.state.as<const StepState>(), args.result.as<StepResult>(),
        args.indices.as<std::int32_t>(), args.weights.as<float>(), args.probabilities.as<std::int32_t>(), args.scores.shape[0], args.indices.shape[0],
        args.min_probability, args.layer, args.block);
}

}  // namespace relume::cuda
