// Kernels in which every element stands alone: add, SwiGLU and its gradient, rope, scaling of components.
#include "cuda.cuh"

namespace relume::cuda {

namespace {

template <class T, int W>
__global__ void __launch_bounds__(kThreads) add_kernel(const T* a, const T* b, T* y, std::int64_t packs) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < packs; i += std::int64_t{gridDim.x} * kThreads) {
    const Pack<T, W> x = load<W>(a + i * W), z = load<W>(b + i * W);
    Pack<T, W> sum;
    for (int k = 0; k < W; ++k) put(sum.v[k], to_float(x.v[k]) + to_float(z.v[k]));
    store<W>(y + i * W, sum);
  }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }

template <class T, int W>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const T* gate_up, T* y, std::int64_t packs, std::int64_t columns) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < packs; i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i * W / columns;
    const T* gate = gate_up + i * W + row * columns;
    const Pack<T, W> g = load<W>(gate), u = load<W>(gate + columns);
    Pack<T, W> out;
    for (int k = 0; k < W; ++k) {
      const float x = to_float(g.v[k]);
      put(out.v[k], x * sigmoid(x) * to_float(u.v[k]));
    }
    store<W>(y + i * W, out);
  }
}

template <class T, int W>
__global__ void __launch_bounds__(kThreads) swiglu_gradient_kernel(const T* gate_up, const T* dy, T* dgate_up, std::int64_t packs, std::int64_t columns) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < packs; i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t at = i * W + i * W / columns * columns;
    const Pack<T, W> g = load<W>(gate_up + at), u = load<W>(gate_up + at + columns), d = load<W>(dy + i * W);
    Pack<T, W> dg, du;
    for (int k = 0; k < W; ++k) {
      const float x = to_float(g.v[k]), s = sigmoid(x), silu = x * s, gradient = to_float(d.v[k]);
      put(du.v[k], gradient * silu);
      put(dg.v[k], gradient * to_float(u.v[k]) * (s + silu * (1.f - s)));
    }
    store<W>(dgate_up + at, dg);
    store<W>(dgate_up + at + columns, du);
  }
}

/// One block a row; a thread turns pairs, so y may be x.
template <class T>
__global__ void __launch_bounds__(kThreads) rope_kernel(const T* x, const float* table, T* y, std::int64_t columns, std::int64_t tokens, std::int64_t head_dim,
                                                        std::int64_t rotated, float sign) {
  const std::int64_t row = blockIdx.x, half = head_dim / 2;
  const float* cosine = table + row % tokens * head_dim;
  x += row * columns;
  y += row * columns;
  for (std::int64_t p = threadIdx.x; p < rotated / 2; p += kThreads) {
    const std::int64_t c = p % half, at = p / half * head_dim + c;
    const float a = to_float(x[at]), b = to_float(x[at + half]), s = sign * cosine[half + c];
    put(y[at], a * cosine[c] - b * s);
    put(y[at + half], b * cosine[c] + a * s);
  }
  if (x == y) return;
  for (std::int64_t c = rotated + threadIdx.x; c < columns; c += kThreads) y[c] = x[c];
}

template <class T>
__global__ void __launch_bounds__(kThreads) scale_kernel(const T* x, const float* weight, T* y, std::int64_t elements, std::int64_t columns, std::int64_t width) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < elements; i += std::int64_t{gridDim.x} * kThreads)
    put(y[i], to_float(x[i]) * weight[i % columns / width]);
}

}  // namespace

void add(const AddArgs& args, Stream stream) {
  for_dtype(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    for_width<T>(args.y.shape.elements(), [&](auto width) {
      constexpr int W = decltype(width)::value;
      const std::int64_t packs = args.y.shape.elements() / W;
      start("add", add_kernel<T, W>, blocks_for(packs), kThreads, 0, stream, args.a.as<const T>(), args.b.as<const T>(), args.y.as<T>(), packs);
    });
  });
}

void swiglu(const SwigluArgs& args, Stream stream) {
  for_dtype(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    for_width<T>(args.y.shape[1], [&](auto width) {
      constexpr int W = decltype(width)::value;
      const std::int64_t packs = args.y.shape.elements() / W;
      start("swiglu", swiglu_kernel<T, W>, blocks_for(packs), kThreads, 0, stream, args.gate_up.as<const T>(), args.y.as<T>(), packs, args.y.shape[1]);
    });
  });
}

void swiglu_gradient(const SwigluGradientArgs& args, Stream stream) {
  for_dtype(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    for_width<T>(args.dy.shape[1], [&](auto width) {
      constexpr int W = decltype(width)::value;
      const std::int64_t packs = args.dy.shape.elements() / W;
      start("swiglu_gradient", swiglu_gradient_kernel<T, W>, blocks_for(packs), kThreads, 0, stream, args.gate_up.as<const T>(), args.dy.as<const T>(),
            args.dgate_up.as<T>(), packs, args.dy.shape[1]);
    });
  });
}

void rope(const RopeArgs& args, Stream stream) {
  for_dtype(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    start("rope", rope_kernel<T>, static_cast<unsigned>(args.x.shape[0]), kThreads, 0, stream, args.x.as<const T>(), args.table.as<const float>(), args.y.as<T>(),
          args.x.shape[1], args.tokens, args.head_dim, args.rotated_columns, args.inverse ? -1.f : 1.f);
  });
}

void scale_components(const ScaleComponentsArgs& args, Stream stream) {
  for_dtype(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t elements = args.x.shape.elements();
    start("scale_components", scale_kernel<T>, blocks_for(elements), kThreads, 0, stream, args.x.as<const T>(), args.weight.as<const float>(), args.y.as<T>(), elements,
          args.x.shape[1], args.columns);
  });
}

}  // namespace relume::cuda
