// Attention to a key-value cache: keys and values of the new tokens are put into it, then one block takes a query and a head.
#include "cuda.cuh"

namespace relume::cuda {

namespace {

template <class T>
__global__ void __launch_bounds__(kThreads) fill_cache_kernel(const T* qkv, const StepState* state, T* cache, std::int64_t columns, std::int64_t queries,
                                                              std::int64_t context) {
  const std::int64_t row = blockIdx.x, at = state->position + row, width = columns - queries;
  if (at >= context) return;
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads) cache[at * width + c] = qkv[row * columns + queries + c];
}

/// Scores lie in shared memory: all threads of a warp take a key together, then every thread one column of the values.
template <class T>
__global__ void __launch_bounds__(kThreads) cached_attention_kernel(const T* qkv, const StepState* state, const T* cache, T* out, std::int64_t context,
                                                                    std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, float scale) {
  float* score = dynamic_shared<float>();
  const std::int64_t row = blockIdx.y, head = blockIdx.x, kv = kv_heads * head_dim, width = 2 * kv, at = state->position + row;
  out += (row * heads + head) * head_dim;
  if (at >= context) {
    for (std::int64_t d = threadIdx.x; d < head_dim; d += kThreads) put(out[d], 0.f);
    return;
  }
  const T* q = qkv + row * (heads * head_dim + width) + head * head_dim;
  const T* keys = cache + head / (heads / kv_heads) * head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float most = -INFINITY;
  for (std::int64_t j = threadIdx.x / kWarp; j <= at; j += kThreads / kWarp) {
    float dot = 0;
    for (std::int64_t d = lane; d < head_dim; d += kWarp) dot += to_float(q[d]) * to_float(keys[j * width + d]);
    for (int step = kWarp / 2; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
    dot *= scale;
    if (lane == 0) score[j] = dot;
    most = dot > most ? dot : most;
  }
  most = block_max<kThreads>(most);
  float total = 0;
  for (std::int64_t j = threadIdx.x; j <= at; j += kThreads) {
    const float p = __expf(score[j] - most);
    score[j] = p;
    total += p;
  }
  total = block_sum<kThreads>(total);
  for (std::int64_t d = threadIdx.x; d < head_dim; d += kThreads) {
    float sum = 0;
    for (std::int64_t j = 0; j <= at; ++j) sum += score[j] * to_float(keys[j * width + kv + d]);
    put(out[d], sum / total);
  }
}

}  // namespace

void cached_attention(const CachedAttentionArgs& args, Stream stream) {
  const AttentionLayout& l = args.layout;
  const std::int64_t context = args.cache.shape[0], queries = l.heads * l.head_dim, columns = queries + args.cache.shape[1];
  for_dtype(args.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* state = args.state.as<const StepState>();
    start("cached_attention fill", fill_cache_kernel<T>, dim3(static_cast<unsigned>(l.tokens)), kThreads, 0, stream, args.qkv.as<const T>(), state, args.cache.as<T>(),
          columns, queries, context);
    start("cached_attention", cached_attention_kernel<T>, dim3(static_cast<unsigned>(l.heads), static_cast<unsigned>(l.tokens)), kThreads,
          static_cast<std::size_t>(context) * sizeof(float), stream, args.qkv.as<const T>(), state, args.cache.as<const T>(), args.out.as<T>(), context, l.heads,
          l.kv_heads, l.head_dim, 1.f / std::sqrt(static_cast<float>(l.head_dim)));
  });
}

}  // namespace relume::cuda
