#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

void rope(const RopeArgs& args, Stream) {
  for_dtype(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1], half = args.head_dim / 2;
    using A = Accumulator<T>;
    const A sign = args.inverse ? A(-1) : A(1);
    const bool copy = args.x.data != args.y.data;
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < rows; ++i) {
      const A *cosine = args.table.as<A>() + i % args.tokens * args.head_dim, *sine = cosine + half;
      const T* x = args.x.as<T>() + i * columns;
      T* y = args.y.as<T>() + i * columns;
      for (std::int64_t h = 0; h < args.rotated_columns; h += args.head_dim)
#pragma omp simd
        for (std::int64_t c = 0; c < half; ++c) {
          const A a = A(x[h + c]), b = A(x[h + half + c]), s = sign * sine[c];
          put(y[h + c], a * cosine[c] - b * s);
          put(y[h + half + c], b * cosine[c] + a * s);
        }
      if (copy)
        std::memcpy(y + args.rotated_columns, x + args.rotated_columns,
                    static_cast<std::size_t>(columns - args.rotated_columns) * sizeof(T));
    }
  });
}

}  // namespace relume::cpu::RELUME_ISA
