#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

void embedding(const EmbeddingArgs& args, Stream) {
  const std::int64_t rows = args.y.shape[0], row_bytes = args.y.shape[1] * size_of(args.y.dtype);
  const auto* ids = args.ids.as<std::int32_t>();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(args.y.as<char>() + i * row_bytes, args.table.as<char>() + ids[i] * row_bytes, static_cast<std::size_t>(row_bytes));
}

// Threads share the columns, not the rows: no two write the same element, and each element is summed in row order.
void embedding_gradient(const EmbeddingGradientArgs& args, Stream) {
  const std::int64_t rows = args.dy.shape[0], columns = args.dy.shape[1], width = 64, strips = ceil_div(columns, width);
  const auto* ids = args.ids.as<std::int32_t>();
  for_dtype(args.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
#pragma omp parallel for schedule(static)
    for (std::int64_t strip = 0; strip < strips; ++strip) {
      const std::int64_t begin = strip * width, end = begin + width < columns ? begin + width : columns;
      for (std::int64_t i = 0; i < rows; ++i) {
        const T* dy = args.dy.as<T>() + i * columns;
        Accumulator<T>* d = args.dtable.as<Accumulator<T>>() + ids[i] * columns;
#pragma omp simd
        for (std::int64_t c = begin; c < end; ++c) d[c] += Accumulator<T>(dy[c]);
      }
    }
  });
}

}  // namespace relume::cpu::RELUME_ISA
