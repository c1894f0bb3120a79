#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

void add(const AddArgs& args, Stream) {
  for_dtype(args.y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    const T *a = args.a.as<T>(), *b = args.b.as<T>();
    T* y = args.y.as<T>();
    const std::int64_t n = args.y.shape.elements();
#pragma omp parallel for simd schedule(static)
    for (std::int64_t i = 0; i < n; ++i) put(y[i], A(a[i]) + A(b[i]));
  });
}

}  // namespace relume::cpu::RELUME_ISA
