#include "cuda.cuh"

namespace relume::cuda {

namespace {

/// Rows as 16-byte or 2-byte words; one block a row.
template <class Word>
__global__ void __launch_bounds__(kThreads) embedding_kernel(const std::int32_t* ids, const Word* table, Word* y, std::int64_t words) {
  const Word* from = table + ids[blockIdx.x] * words;
  Word* to = y + blockIdx.x * words;
  for (std::int64_t i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
}

/// The first row with an id sums all rows that have it, in their order; other blocks end at once. Nothing is sorted, nothing is
/// atomic: N blocks look through N ids, which stay in cache.
template <class T>
__global__ void __launch_bounds__(kThreads) embedding_gradient_kernel(const std::int32_t* ids, const T* dy, float* dtable, std::int64_t rows, std::int64_t columns) {
  __shared__ unsigned found[kThreads / kWarp];
  const std::int64_t first = blockIdx.x;
  const std::int32_t id = ids[first];
  int earlier = 0;
  for (std::int64_t j = threadIdx.x; j < first; j += kThreads) earlier |= ids[j] == id;
  if (__syncthreads_or(earlier)) return;
  float* d = dtable + id * columns;
  for (std::int64_t begin = first; begin < rows; begin += kThreads) {
    const std::int64_t j = begin + threadIdx.x;
    const unsigned mask = __ballot_sync(0xffffffffu, j < rows && ids[j] == id);
    if (threadIdx.x % kWarp == 0) found[threadIdx.x / kWarp] = mask;
    __syncthreads();
    for (int w = 0; w < kThreads / kWarp; ++w)
      for (unsigned left = found[w]; left != 0; left &= left - 1) {
        const T* from = dy + (begin + w * kWarp + __ffs(static_cast<int>(left)) - 1) * columns;
        for (std::int64_t c = threadIdx.x; c < columns; c += kThreads) d[c] += to_float(from[c]);
      }
    __syncthreads();
  }
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream stream) {
  const std::int64_t rows = args.y.shape[0], bytes = args.y.shape[1] * size_of(args.y.dtype);
  const auto* ids = args.ids.as<const std::int32_t>();
  if (bytes % 16 == 0)
    start("embedding", embedding_kernel<uint4>, static_cast<unsigned>(rows), kThreads, 0, stream, ids, args.table.as<const uint4>(), args.y.as<uint4>(), bytes / 16);
  else
    start("embedding", embedding_kernel<std::uint16_t>, static_cast<unsigned>(rows), kThreads, 0, stream, ids, args.table.as<const std::uint16_t>(),
          args.y.as<std::uint16_t>(), bytes / 2);
}

void embedding_gradient(const EmbeddingGradientArgs& args, Stream stream) {
  for_dtype(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    start("embedding_gradient", embedding_gradient_kernel<T>, static_cast<unsigned>(args.dy.shape[0]), kThreads, 0, stream, args.ids.as<const std::int32_t>(),
          args.dy.as<const T>(), args.dtable.as<float>(), args.dy.shape[0], args.dy.shape[1]);
  });
}

}  // namespace relume::cuda
