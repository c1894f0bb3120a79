#include "cuda.cuh"

namespace relume::cuda {

namespace {

constexpr int kRowThreads = 128;

/// One block a row; the second pass over the row finds it in cache.
template <class T, int W>
__global__ void __launch_bounds__(kRowThreads) rms_norm_kernel(const T* x, const float* weight, T* y, float* rstd, std::int64_t columns, float eps) {
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  float sum = 0;
  for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kRowThreads * W) {
    const Pack<T, W> p = load<W>(x + c);
    for (int k = 0; k < W; ++k) sum += to_float(p.v[k]) * to_float(p.v[k]);
  }
  const float r = 1.f / sqrtf(block_sum<kRowThreads>(sum) / static_cast<float>(columns) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kRowThreads * W) {
    const Pack<T, W> p = load<W>(x + c);
    Pack<T, W> out;
    for (int k = 0; k < W; ++k) put(out.v[k], rounded<T>(to_float(p.v[k]) * r) * weight[c + k]);
    store<W>(y + c, out);
  }
}

// Rows are shared out over at most this many blocks, whatever the device: the order of dweight's sum.
constexpr std::int64_t kMostGroups = 264;

std::int64_t groups_of(std::int64_t rows) { return rows < kMostGroups ? rows : kMostGroups; }

/// A block takes rows blockIdx.x, + gridDim.x, ...; a thread owns columns, so its part of dweight in shared memory is its alone.
template <class T, int W>
__global__ void __launch_bounds__(kRowThreads) rms_norm_gradient_kernel(const T* x, const float* weight, const float* rstd, const T* dy, const T* residual, T* dx,
                                                                        float* partial, std::int64_t rows, std::int64_t columns) {
  float* dweight = dynamic_shared<float>();
  for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kRowThreads * W)
    for (int k = 0; k < W; ++k) dweight[c + k] = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t at = row * columns;
    const float r = rstd[row];
    float dot = 0;
    for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kRowThreads * W) {
      const Pack<T, W> px = load<W>(x + at + c), pd = load<W>(dy + at + c);
      for (int k = 0; k < W; ++k) dot += to_float(pd.v[k]) * weight[c + k] * to_float(px.v[k]);
    }
    const float scale = block_sum<kRowThreads>(dot) * r * r / static_cast<float>(columns);
    for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kRowThreads * W) {
      const Pack<T, W> px = load<W>(x + at + c), pd = load<W>(dy + at + c);
      Pack<T, W> out, base;
      if (residual) base = load<W>(residual + at + c);
      for (int k = 0; k < W; ++k) {
        const float gradient = to_float(pd.v[k]), value = to_float(px.v[k]);
        dweight[c + k] += gradient * value * r;
        const float d = r * (gradient * weight[c + k] - value * scale);
        put(out.v[k], residual ? to_float(base.v[k]) + d : d);
      }
      store<W>(dx + at + c, out);
    }
  }
  for (std::int64_t c = threadIdx.x * std::int64_t{W}; c < columns; c += kRowThreads * W)
    for (int k = 0; k < W; ++k) partial[blockIdx.x * columns + c + k] = dweight[c + k];
}

__global__ void __launch_bounds__(kThreads) add_groups_kernel(const float* partial, float* y, std::int64_t groups, std::int64_t columns) {
  const std::int64_t c = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (std::int64_t g = 0; g < groups; ++g) sum += partial[g * columns + c];
  y[c] += sum;
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream stream) {
  for_dtype(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape[-1];
    for_width<T>(columns, [&](auto width) {
      constexpr int W = decltype(width)::value;
      start("rms_norm", rms_norm_kernel<T, W>, static_cast<unsigned>(rows), kRowThreads, 0, stream, args.x.as<const T>(), args.weight.as<const float>(), args.y.as<T>(),
            args.rstd.as<float>(), columns, static_cast<float>(args.eps));
    });
  });
}

std::int64_t rms_norm_gradient_workspace(const RmsNormGradientArgs& args) { return groups_of(args.x.shape.rows()) * args.x.shape[-1] * 4; }

void rms_norm_gradient(const RmsNormGradientArgs& args, Stream stream) {
  for_dtype(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape[-1], groups = groups_of(rows);
    for_width<T>(columns, [&](auto width) {
      constexpr int W = decltype(width)::value;
      start("rms_norm_gradient", rms_norm_gradient_kernel<T, W>, static_cast<unsigned>(groups), kRowThreads, static_cast<std::size_t>(columns) * 4, stream,
            args.x.as<const T>(), args.weight.as<const float>(), args.rstd.as<const float>(), args.dy.as<const T>(), args.residual.as<const T>(), args.dx.as<T>(),
            static_cast<float*>(args.workspace), rows, columns);
    });
    start("rms_norm_gradient", add_groups_kernel, static_cast<unsigned>((columns + kThreads - 1) / kThreads), kThreads, 0, stream,
          static_cast<const float*>(args.workspace), args.dweight.as<float>(), groups, columns);
  });
}

}  // namespace relume::cuda
