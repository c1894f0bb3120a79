#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

namespace {

/// The three products of a chunk: logits = x weight^T, dx = dlogits weight, dweight += dlogits^T x. Logits are kept in the
/// accumulation dtype; their gradient, in the dtype of x, takes their place where the two are the same.
struct ChunkProducts {
  MatmulArgs logits, dx, dweight;
};

/// Parts of the workspace, as byte offsets.
struct Parts {
  std::int64_t dlogits, nll, scratch;

  RELUME_INLINE explicit Parts(const LinearCrossEntropyArgs& args) {
    const std::int64_t elements = args.chunk_rows * args.weight.shape[0];
    const DType dtype = accumulation_dtype(args.x.dtype);
    dlogits = dtype == args.x.dtype ? 0 : round_up(elements * size_of(dtype), 64);
    nll = dlogits + round_up(elements * size_of(args.x.dtype), 64);
    scratch = round_up(nll + args.chunk_rows * 8, 64);
  }
};

RELUME_INLINE TensorView chunk_of(const TensorView& t, std::int64_t first, std::int64_t rows) {
  void* data = t.data ? t.as<char>() + first * t.shape[1] * size_of(t.dtype) : nullptr;
  return {data, t.dtype, {rows, t.shape[1]}};
}

RELUME_INLINE ChunkProducts products(const LinearCrossEntropyArgs& args, std::int64_t first, std::int64_t rows) {
  const std::int64_t vocabulary = args.weight.shape[0];
  const DType dtype = accumulation_dtype(args.x.dtype);
  const Parts parts(args);
  char* workspace = static_cast<char*>(args.workspace);
  const auto part = [&](std::int64_t offset) -> void* { return workspace ? workspace + offset : nullptr; };
  const TensorView x = chunk_of(args.x, first, rows), logits{workspace, dtype, {rows, vocabulary}};
  const TensorView z{part(parts.dlogits), args.x.dtype, {rows, vocabulary}};
  void* scratch = part(parts.scratch);
  return {{x, args.weight, logits, {}, false, true, false, scratch},
          {z, args.weight, chunk_of(args.dx, first, rows), {}, false, false, false, scratch},
          {z, x, args.dweight, {}, true, false, true, scratch}};
}

RELUME_INLINE std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// Turns a row of logits z into the gradient (softmax - one-hot) * scale in dz, which may be z; returns the nll of the target.
/// z is overwritten.
template <class T, class D>
RELUME_INLINE double cross_entropy_row(T* z, D* dz, std::int64_t n, std::int64_t target, T scale) {
  const T at_target = z[target];
  T top = z[0], sum = 0;
#pragma omp simd reduction(max : top)
  for (std::int64_t i = 0; i < n; ++i) top = z[i] > top ? z[i] : top;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const T e = exponential(z[i] - top);
    z[i] = e;
    sum += e;
  }
  const T factor = scale / sum, at_target_probability = z[target];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) put(dz[i], z[i] * factor);
  put(dz[target], at_target_probability * factor - scale);
  return std::log(static_cast<double>(sum)) + (static_cast<double>(top) - static_cast<double>(at_target));
}

}  // namespace

std::int64_t linear_cross_entropy_workspace(const LinearCrossEntropyArgs& args) {
  const std::int64_t rows = args.x.shape[0], chunk = args.chunk_rows, tail = rows % chunk;
  std::int64_t scratch = 0;
  for (std::int64_t r : {chunk < rows ? chunk : rows, tail}) {
    if (r == 0) continue;
    const ChunkProducts p = products(args, 0, r);
    scratch = most(scratch, matmul_workspace(p.logits));
    if (args.dx.shape.rank()) scratch = most(scratch, most(matmul_workspace(p.dx), matmul_workspace(p.dweight)));
  }
  return Parts(args).scratch + scratch;
}

void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) {
  const std::int64_t rows = args.x.shape[0], vocabulary = args.weight.shape[0], chunk = args.chunk_rows;
  const double scale = args.state.as<StepState>()->inverse_targets;
  StepResult& result = *args.result.as<StepResult>();
  const auto* targets = args.targets.as<std::int32_t>();
  const bool gradient = args.dx.data != nullptr;
  double total = 0;
  for_dtype(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulator<T>;
    auto* nll = reinterpret_cast<double*>(static_cast<char*>(args.workspace) + Parts(args).nll);
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = rows - first < chunk ? rows - first : chunk;
      const ChunkProducts p = products(args, first, count);
      matmul(p.logits, stream);
      A* z = p.logits.c.as<A>();
      T* dz = p.dx.a.as<T>();
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t target = targets[first + i];
        if (target >= 0) {
          nll[i] = cross_entropy_row(z + i * vocabulary, dz + i * vocabulary, vocabulary, target, static_cast<A>(scale));
        } else {
          nll[i] = 0;
          std::memset(static_cast<void*>(dz + i * vocabulary), 0, static_cast<std::size_t>(vocabulary) * sizeof(T));
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        total += nll[i];
        result.nll_squared += nll[i] * nll[i];
      }
      if (!gradient) continue;
      matmul(p.dx, stream);
      matmul(p.dweight, stream);
    }
  });
  result.nll += total;
  *args.loss.as<double>() = total * scale;
}

}  // namespace relume::cpu::RELUME_ISA
