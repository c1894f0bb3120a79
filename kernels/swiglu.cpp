#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

void swiglu(const SwigluArgs& args, Stream) {
  for_dtype(args.y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    const std::int64_t rows = args.y.shape[0], columns = args.y.shape[1];
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < rows; ++i) {
      const T *gate = args.gate_up.as<T>() + 2 * i * columns, *up = gate + columns;
      T* y = args.y.as<T>() + i * columns;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) {
        const A g = A(gate[c]);
        put(y[c], g * sigmoid(g) * A(up[c]));
      }
    }
  });
}

void swiglu_gradient(const SwigluGradientArgs& args, Stream) {
  for_dtype(args.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    const std::int64_t rows = args.dy.shape[0], columns = args.dy.shape[1];
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < rows; ++i) {
      const T *gate = args.gate_up.as<T>() + 2 * i * columns, *up = gate + columns, *dy = args.dy.as<T>() + i * columns;
      T *dgate = args.dgate_up.as<T>() + 2 * i * columns, *dup = dgate + columns;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) {
        const A g = A(gate[c]), u = A(up[c]), s = sigmoid(g), silu = g * s, d = A(dy[c]);
        put(dup[c], d * silu);
        put(dgate[c], d * u * (s + silu * (A(1) - s)));
      }
    }
  });
}

}  // namespace relume::cpu::RELUME_ISA
