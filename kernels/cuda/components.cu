// Rows of chosen components: gather, scatter-add, and the scores that choose them.
#include "cuda.cuh"

namespace relume::cuda {

namespace {

/// What a row of gathered weights is in the full ones.
struct RowMap {
  Segments segments;
  std::int64_t components, chosen;

  __device__ __forceinline__ std::int64_t full_row(std::int64_t row, const std::int32_t* indices) const {
    std::int64_t full = 0;
    for (int s = 0; s < segments.count; ++s) {
      const std::int64_t rows = segments.rows_per_component[s];
      if (row < chosen * rows) return full + indices[row / rows] * rows + row % rows;
      full += components * rows;
      row -= chosen * rows;
    }
    return full;
  }
};

template <class Word>
__global__ void __launch_bounds__(kThreads) gather_kernel(const Word* weight, const std::int32_t* indices, Word* y, RowMap map, std::int64_t words) {
  const Word* from = weight + map.full_row(blockIdx.x, indices) * words;
  Word* to = y + blockIdx.x * words;
  for (std::int64_t i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
}

/// Indices are distinct, so every row of dweight belongs to one block.
template <int W>
__global__ void __launch_bounds__(kThreads) scatter_add_kernel(const float* dy, const std::int32_t* indices, float* dweight, RowMap map, std::int64_t columns) {
  const float* from = dy + blockIdx.x * columns;
  float* to = dweight + map.full_row(blockIdx.x, indices) * columns;
  for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kThreads * W) {
    const Pack<float, W> add = load<W>(from + c);
    Pack<float, W> sum = load<W>(to + c);
    for (int k = 0; k < W; ++k) sum.v[k] += add.v[k];
    store<W>(to + c, sum);
  }
}

constexpr std::int64_t kScoreGroups = 64;  // rows are summed in this many groups, then over groups in order

/// partial[group][column] = sum of squares over the group's rows.
template <class T>
__global__ void __launch_bounds__(kThreads) column_energy_kernel(const T* x, float* partial, std::int64_t rows, std::int64_t columns) {
  const std::int64_t c = blockIdx.x * std::int64_t{kThreads} + threadIdx.x, group = blockIdx.y;
  if (c >= columns) return;
  float energy = 0;
  for (std::int64_t i = rows * group / kScoreGroups; i < rows * (group + 1) / kScoreGroups; ++i) {
    const float v = to_float(x[i * columns + c]);
    energy += v * v;
  }
  partial[group * columns + c] = energy;
}

/// One block a component.
template <class T>
__global__ void __launch_bounds__(kThreads) scores_kernel(const float* partial, const T* weight, float* scores, std::int64_t columns, std::int64_t width,
                                                          std::int64_t model) {
  const std::int64_t j = blockIdx.x;
  float energy = 0, norm = 0;
  for (std::int64_t i = threadIdx.x; i < width * kScoreGroups; i += kThreads) energy += partial[i / width * columns + j * width + i % width];
  for (std::int64_t i = threadIdx.x; i < width * model; i += kThreads) {
    const float v = to_float(weight[j * width * model + i]);
    norm += v * v;
  }
  energy = block_sum<kThreads>(energy);
  norm = block_sum<kThreads>(norm);
  if (threadIdx.x == 0) scores[j] = sqrtf(energy) * sqrtf(norm);
}

}  // namespace

void gather_components(const GatherComponentsArgs& args, Stream stream) {
  const RowMap map{args.segments, args.weight.shape[0] / args.segments.rows(), args.indices.shape[0]};
  const std::int64_t bytes = args.y.shape[1] * size_of(args.y.dtype);
  const auto blocks = static_cast<unsigned>(args.y.shape[0]);
  const auto* indices = args.indices.as<const std::int32_t>();
  if (bytes % 16 == 0)
    start("gather_components", gather_kernel<uint4>, blocks, kThreads, 0, stream, args.weight.as<const uint4>(), indices, args.y.as<uint4>(), map, bytes / 16);
  else
    start("gather_components", gather_kernel<std::uint16_t>, blocks, kThreads, 0, stream, args.weight.as<const std::uint16_t>(), indices, args.y.as<std::uint16_t>(), map,
          bytes / 2);
}

void scatter_add_components(const ScatterAddComponentsArgs& args, Stream stream) {
  const RowMap map{args.segments, args.dweight.shape[0] / args.segments.rows(), args.indices.shape[0]};
  for_width<float>(args.dy.shape[1], [&](auto width) {
    constexpr int W = decltype(width)::value;
    start("scatter_add_components", scatter_add_kernel<W>, static_cast<unsigned>(args.dy.shape[0]), kThreads, 0, stream, args.dy.as<const float>(),
          args.indices.as<const std::int32_t>(), args.dweight.as<float>(), map, args.dy.shape[1]);
  });
}

std::int64_t component_scores_workspace(const ComponentScoresArgs& args) { return kScoreGroups * args.x.shape[1] * 4; }

void component_scores(const ComponentScoresArgs& args, Stream stream) {
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  auto* partial = static_cast<float*>(args.workspace);
  for_dtype(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    start("component_scores", column_energy_kernel<T>, dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads), kScoreGroups), kThreads, 0, stream,
          args.x.as<const T>(), partial, rows, columns);
    start("component_scores", scores_kernel<T>, static_cast<unsigned>(args.scores.shape[0]), kThreads, 0, stream, static_cast<const float*>(partial),
          args.weight.as<const T>(), args.scores.as<float>(), columns, args.columns, args.weight.shape[1]);
  });
}

}  // namespace relume::cuda
