// Rows and columns of chosen components: gather, scatter-add, scale, and the scores that choose them.
#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

namespace {

/// Calls f(row in the full weight, row in the gathered weight) for every row of every chosen component, in parallel.
template <class F>
RELUME_INLINE void for_each_component_row(const Segments& segments, std::int64_t components, const TensorView& indices, F&& f) {
  const std::int64_t k = indices.shape[0];
  const auto* index = indices.as<std::int32_t>();
  std::int64_t full = 0, gathered = 0;
  for (int s = 0; s < segments.count; ++s) {
    const std::int64_t rows = segments.rows_per_component[s];
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t r = 0; r < rows; ++r) f(full + index[i] * rows + r, gathered + i * rows + r);
    full += components * rows;
    gathered += k * rows;
  }
}

}  // namespace

void gather_components(const GatherComponentsArgs& args, Stream) {
  const std::int64_t row_bytes = args.y.shape[1] * size_of(args.y.dtype);
  for_each_component_row(args.segments, args.weight.shape[0] / args.segments.rows(), args.indices,
                         [&](std::int64_t full, std::int64_t gathered) {
                           std::memcpy(args.y.as<char>() + gathered * row_bytes, args.weight.as<char>() + full * row_bytes,
                                       static_cast<std::size_t>(row_bytes));
                         });
}

// Indices are distinct, so no two iterations touch the same row: no atomics.
void scatter_add_components(const ScatterAddComponentsArgs& args, Stream) {
  const std::int64_t columns = args.dy.shape[1];
  for_accumulator(args.dy.dtype, [&](auto* type) {
    using A = std::remove_pointer_t<decltype(type)>;
    for_each_component_row(args.segments, args.dweight.shape[0] / args.segments.rows(), args.indices,
                           [&](std::int64_t full, std::int64_t gathered) {
                             const A* from = args.dy.as<A>() + gathered * columns;
                             A* to = args.dweight.as<A>() + full * columns;
#pragma omp simd
                             for (std::int64_t c = 0; c < columns; ++c) to[c] += from[c];
                           });
  });
}

void scale_components(const ScaleComponentsArgs& args, Stream) {
  for_dtype(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1], width = args.columns;
    using A = Accumulator<T>;
    const A* weight = args.weight.as<A>();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* x = args.x.as<T>() + i * columns;
      T* y = args.y.as<T>() + i * columns;
      if (width == 1) {
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c) put(y[c], A(x[c]) * weight[c]);
      } else {
        for (std::int64_t j = 0; j * width < columns; ++j)
#pragma omp simd
          for (std::int64_t c = j * width; c < (j + 1) * width; ++c) put(y[c], A(x[c]) * weight[j]);
      }
    }
  });
}

namespace {
constexpr std::int64_t kScoreGroups = 16;  // rows are summed in this many groups, whatever the thread count
}

std::int64_t component_scores_workspace(const ComponentScoresArgs& args) {
  return kScoreGroups * args.x.shape[1] * size_of(accumulation_dtype(args.x.dtype));
}

void component_scores(const ComponentScoresArgs& args, Stream) {
  for_dtype(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1], width = args.columns;
    const std::int64_t model = args.weight.shape[1], components = args.scores.shape[0];
    using A = Accumulator<T>;
    A* partial = static_cast<A*>(args.workspace);
#pragma omp parallel for schedule(static)
    for (std::int64_t g = 0; g < kScoreGroups; ++g) {
      A* energy = partial + g * columns;
      for (std::int64_t c = 0; c < columns; ++c) energy[c] = 0;
      for (std::int64_t i = rows * g / kScoreGroups; i < rows * (g + 1) / kScoreGroups; ++i) {
        const T* x = args.x.as<T>() + i * columns;
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c) energy[c] += A(x[c]) * A(x[c]);
      }
    }
#pragma omp parallel for schedule(static)
    for (std::int64_t j = 0; j < components; ++j) {
      A energy = 0, norm = 0;
      for (std::int64_t c = j * width; c < (j + 1) * width; ++c)
        for (std::int64_t g = 0; g < kScoreGroups; ++g) energy += partial[g * columns + c];
      const T* weight = args.weight.as<T>() + j * width * model;
#pragma omp simd reduction(+ : norm)
      for (std::int64_t c = 0; c < width * model; ++c) norm += A(weight[c]) * A(weight[c]);
      args.scores.as<A>()[j] = std::sqrt(energy) * std::sqrt(norm);
    }
  });
}

}  // namespace relume::cpu::RELUME_ISA
