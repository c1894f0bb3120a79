#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

void rms_norm(const RmsNormArgs& args, Stream) {
  for_dtype(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape[-1];
    const A* weight = args.weight.as<A>();
    const A eps = static_cast<A>(args.eps);
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* x = args.x.as<T>() + i * columns;
      T* y = args.y.as<T>() + i * columns;
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < columns; ++c) sum += A(x[c]) * A(x[c]);
      const A rstd = A(1) / std::sqrt(sum / static_cast<A>(columns) + eps);
      args.rstd.as<A>()[i] = rstd;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) put(y[c], rounded<T>(A(x[c]) * rstd) * weight[c]);
    }
  });
}

namespace {
// dweight is summed in at most this many groups of rows, then over groups in order: independent of the thread count.
constexpr std::int64_t kMostGroups = 32;
RELUME_INLINE std::int64_t groups_of(std::int64_t rows) { return rows < kMostGroups ? rows : kMostGroups; }
}  // namespace

std::int64_t rms_norm_gradient_workspace(const RmsNormGradientArgs& args) {
  return groups_of(args.x.shape.rows()) * args.x.shape[-1] * size_of(accumulation_dtype(args.x.dtype));
}

void rms_norm_gradient(const RmsNormGradientArgs& args, Stream) {
  for_dtype(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape[-1], groups = groups_of(rows);
    const A *weight = args.weight.as<A>(), *rstd = args.rstd.as<A>();
    A* partial = static_cast<A*>(args.workspace);
#pragma omp parallel for schedule(static)
    for (std::int64_t g = 0; g < groups; ++g) {
      A* dweight = partial + g * columns;
      for (std::int64_t c = 0; c < columns; ++c) dweight[c] = 0;
      for (std::int64_t i = rows * g / groups; i < rows * (g + 1) / groups; ++i) {
        const T *x = args.x.as<T>() + i * columns, *dy = args.dy.as<T>() + i * columns;
        const T* residual = args.residual.data ? args.residual.as<T>() + i * columns : nullptr;
        T* dx = args.dx.as<T>() + i * columns;
        const A r = rstd[i];
        A dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t c = 0; c < columns; ++c) dot += A(dy[c]) * weight[c] * A(x[c]);
        const A scale = dot * r * r / static_cast<A>(columns);
#pragma omp simd
        for (std::int64_t c = 0; c < columns; ++c) {
          const A gradient = A(dy[c]), value = A(x[c]);
          dweight[c] += gradient * value * r;
          const A d = r * (gradient * weight[c] - value * scale);
          put(dx[c], residual ? A(residual[c]) + d : d);
        }
      }
    }
    A* dweight = args.dweight.as<A>();
    for (std::int64_t g = 0; g < groups; ++g)
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) dweight[c] += partial[g * columns + c];
  });
}

}  // namespace relume::cpu::RELUME_ISA
