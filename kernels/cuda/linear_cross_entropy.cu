#include "cuda.cuh"

namespace relume::cuda {

namespace {

/// Parts of the workspace, as byte offsets: logits of a chunk in f32, their gradient in the dtype of x (in place where that is
/// f32), the nll of every row, scratch of the products.
struct Parts {
  std::int64_t dlogits, nll, scratch;
  explicit Parts(const LinearCrossEntropyArgs& args) {
    const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const std::int64_t elements = args.chunk_rows * args.weight.shape[0];
    dlogits = args.x.dtype == DType::f32 ? 0 : aligned(elements * 4);
    nll = dlogits + aligned(elements * size_of(args.x.dtype));
    scratch = aligned(nll + args.x.shape[0] * 8);
  }
};

struct ChunkProducts {
  MatmulArgs logits, dx, dweight;
};

TensorView chunk_of(const TensorView& t, std::int64_t first, std::int64_t rows) {
  void* data = t.data ? t.as<char>() + first * t.shape[1] * size_of(t.dtype) : nullptr;
  return {data, t.dtype, {rows, t.shape[1]}};
}

ChunkProducts products(const LinearCrossEntropyArgs& args, std::int64_t first, std::int64_t rows) {
  const std::int64_t vocabulary = args.weight.shape[0];
  const Parts parts(args);
  char* workspace = static_cast<char*>(args.workspace);
  const auto part = [&](std::int64_t offset) -> void* { return workspace ? workspace + offset : nullptr; };
  const TensorView x = chunk_of(args.x, first, rows), logits{workspace, DType::f32, {rows, vocabulary}};
  const TensorView z{part(parts.dlogits), args.x.dtype, {rows, vocabulary}};
  void* scratch = part(parts.scratch);
  return {{x, args.weight, logits, {}, false, true, false, scratch},
          {z, args.weight, chunk_of(args.dx, first, rows), {}, false, false, false, scratch},
          {z, x, args.dweight, {}, true, false, true, scratch}};
}

/// One block a row: nll of the target, and (softmax - one-hot) * scale in dz, which may be z. The maximum and the sum are found in
/// one pass, each thread rescaling its sum when its maximum rises.
template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(const float* z, T* dz, const std::int32_t* targets, const StepState* state, double* nll,
                                                                 std::int64_t vocabulary, int gradient) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  z += row * vocabulary;
  dz += row * vocabulary;
  if (target < 0) {  // the whole block
    if (gradient)
      for (std::int64_t i = threadIdx.x; i < vocabulary; i += kThreads) put(dz[i], 0.f);
    if (threadIdx.x == 0) nll[row] = 0;
    return;
  }
  const float at_target = z[target];
  float top = -INFINITY, sum = 0;
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kThreads) {
    const float x = z[i];
    if (x > top) {
      sum *= __expf(top - x);
      top = x;
    }
    sum += __expf(x - top);
  }
  const float highest = block_max<kThreads>(top);
  const float total = block_sum<kThreads>(sum > 0 ? sum * __expf(top - highest) : 0.f);
  if (threadIdx.x == 0) nll[row] = log(static_cast<double>(total)) + (static_cast<double>(highest) - static_cast<double>(at_target));
  if (!gradient) return;
  const float scale = static_cast<float>(state->inverse_targets), factor = scale / total;
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kThreads) put(dz[i], __expf(z[i] - highest) * factor - (i == target ? scale : 0.f));
}

/// Adds the rows' nll to the result, in an order that depends on their number alone.
__global__ void __launch_bounds__(kThreads) nll_kernel(const double* nll, const StepState* state, StepResult* result, double* loss, std::int64_t rows) {
  double sum = 0, squares = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += kThreads) {
    sum += nll[i];
    squares += nll[i] * nll[i];
  }
  sum = block_sum<kThreads>(sum);
  squares = block_sum<kThreads>(squares);
  if (threadIdx.x != 0) return;
  result->nll += sum;
  result->nll_squared += squares;
  *loss = sum * state->inverse_targets;
}

}  // namespace

std::int64_t linear_cross_entropy_workspace(const LinearCrossEntropyArgs& args) {
  const std::int64_t rows = args.x.shape[0], chunk = args.chunk_rows, tail = rows % chunk;
  std::int64_t scratch = 0;
  for (std::int64_t r : {chunk < rows ? chunk : rows, tail}) {
    if (r == 0) continue;
    const ChunkProducts p = products(args, 0, r);
    for (const MatmulArgs* m : {&p.logits, &p.dx, &p.dweight}) {
      if (m != &p.logits && args.dx.shape.rank() == 0) continue;
      const std::int64_t bytes = matmul_workspace(*m);
      scratch = bytes > scratch ? bytes : scratch;
    }
  }
  return Parts(args).scratch + scratch;
}

void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) {
  const std::int64_t rows = args.x.shape[0], chunk = args.chunk_rows;
  const bool gradient = args.dx.data != nullptr;
  auto* nll = reinterpret_cast<double*>(static_cast<char*>(args.workspace) + Parts(args).nll);
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t count = rows - first < chunk ? rows - first : chunk;
    const ChunkProducts p = products(args, first, count);
    matmul(p.logits, stream);
    for_dtype(args.x.dtype, [&](auto type) {
      using T = decltype(type);
      start("linear_cross_entropy", cross_entropy_kernel<T>, static_cast<unsigned>(count), kThreads, 0, stream, p.logits.c.as<const float>(), p.dx.a.as<T>(),
            args.targets.as<const std::int32_t>() + first, args.state.as<const StepState>(), nll + first, args.weight.shape[0], gradient ? 1 : 0);
    });
    if (!gradient) continue;
    matmul(p.dx, stream);
    matmul(p.dweight, stream);
  }
  start("linear_cross_entropy", nll_kernel, 1u, kThreads, 0, stream, static_cast<const double*>(nll), args.state.as<const StepState>(), args.result.as<StepResult>(),
        args.loss.as<double>(), rows);
}

}  // namespace relume::cuda
