#include "planted_bugs.h"

#include <cublasLt.h>

#include <cmath>
#include <vector>

#include "cuda.cuh"

namespace relume::test {

namespace {

constexpr int kN = 256;

template <class... P, class... A>
bool start(void (*kernel)(P...), int threads, std::size_t shared, cudaStream_t stream, A... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...) == cudaSuccess;
}

/// Device memory and a stream for one case.
struct Case {
  cudaStream_t stream = nullptr, other = nullptr;
  float *a = nullptr, *b = nullptr;
  std::vector<float> host = std::vector<float>(2 * kN);

  Case() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void**>(&a), 2 * kN * 4);
    cudaMalloc(reinterpret_cast<void**>(&b), 2 * kN * 4);
    for (int i = 0; i < 2 * kN; ++i) host[static_cast<std::size_t>(i)] = static_cast<float>(i % 7);
    cudaMemcpyAsync(a, host.data(), 2 * kN * 4, cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
  }
  ~Case() {
    cudaFree(a);
    cudaFree(b);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
  }
  std::vector<float> read(const float* from, std::size_t n) {
    std::vector<float> v(n);
    cudaMemcpyAsync(v.data(), from, n * 4, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return v;
  }
  /// Whether every float of `from` is twice that of the host's data.
  bool doubled(const float* from) {
    const auto v = read(from, 2 * kN);
    for (std::size_t i = 0; i < v.size(); ++i)
      if (v[i] != 2 * host[i]) return false;
    return true;
  }
};

__global__ void double_kernel(const float* x, float* y) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2 * x[i];
}

// --- kernels --------------------------------------------------------------------------------------------------------------------

/// y[i] = sum of x over the block, twice; the variants differ in one line.
template <int Bug>
__global__ void sum_kernel(const float* x, float* y) {
  __shared__ float values[kN];
  const unsigned t = threadIdx.x, i = blockIdx.x * kN + t;
  if (Bug == 3 && t == 5) return;  // before a barrier
  values[t] = x[i];
  if (Bug == 2 && t < 32)
    __syncthreads();  // by some
  else if (Bug != 1)
    __syncthreads();
  float sum = 0;
  for (int k = 0; k < kN; ++k) sum += values[k];
  y[i] = sum;
}

template <int Bug>
bool sum_case(bool bug) {
  Case c;
  if (!start(bug ? sum_kernel<Bug> : sum_kernel<0>, kN, 0, c.stream, c.a, c.b)) return false;
  float expected = 0;
  for (int i = 0; i < kN; ++i) expected += c.host[static_cast<std::size_t>(i)];
  return c.read(c.b, 1)[0] == expected;
}

template <bool Bug>
__global__ void shuffle_kernel(const float* x, float* y) {
  const unsigned i = blockIdx.x * kN + threadIdx.x;
  float v = x[i];
  if (!Bug || threadIdx.x % 32 < 16) v += __shfl_xor_sync(Bug ? 0x0000ffffu : 0xffffffffu, v, Bug ? 16 : 1);
  if (Bug && threadIdx.x % 32 >= 16) v += __shfl_xor_sync(0x0000ffffu, v, 1);  // not named by its own mask
  y[i] = v;
}

bool shuffle_case(bool bug) {
  Case c;
  if (!start(bug ? shuffle_kernel<true> : shuffle_kernel<false>, kN, 0, c.stream, c.a, c.b)) return false;
  return c.read(c.b, 1)[0] == c.host[0] + c.host[1];
}

__global__ void shared_kernel(const float* x, float* y) {
  auto* s = cuda::dynamic_shared<float>();
  s[threadIdx.x] = x[blockIdx.x * kN + threadIdx.x];
  y[blockIdx.x * kN + threadIdx.x] = 2 * s[threadIdx.x];
}

bool much_shared_memory(bool bug) {
  Case c;
  const std::size_t bytes = 64 << 10;
  cudaFuncSetAttribute(reinterpret_cast<const void*>(shared_kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bug ? 48 << 10 : static_cast<int>(bytes));
  return start(shared_kernel, kN, bytes, c.stream, c.a, c.b) && c.doubled(c.b);
}

// --- host -----------------------------------------------------------------------------------------------------------------------

bool host_pointer(bool bug) {
  Case c;
  return start(double_kernel, kN, 0, c.stream, bug ? c.host.data() : c.a, c.b) && c.doubled(c.b);
}

bool freed_memory(bool bug) {
  Case c;
  float* p = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&p), 2 * kN * 4);
  if (bug) cudaFree(p);
  const bool ok = start(double_kernel, kN, 0, c.stream, c.a, p) && c.doubled(p);
  if (!bug) cudaFree(p);
  return ok;
}

bool too_many_threads(bool bug) {
  Case c;
  return start(double_kernel, bug ? 2048 : kN, 0, c.stream, c.a, c.b) && c.doubled(c.b);
}

bool missing_wait_between_streams(bool bug) {
  Case c;
  cudaEvent_t made = nullptr;
  cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  start(double_kernel, kN, 0, c.other, c.a, c.b);
  cudaEventRecord(made, c.other);
  if (!bug) cudaStreamWaitEvent(c.stream, made, 0);
  const bool ok = c.doubled(c.b);  // reads on c.stream
  cudaStreamSynchronize(c.other);
  cudaEventDestroy(made);
  return ok;
}

bool pinned_memory_used_again(bool bug) {
  Case c;
  float* pinned = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&pinned), 2 * kN * 4);
  for (int i = 0; i < 2 * kN; ++i) pinned[i] = c.host[static_cast<std::size_t>(i)];
  cudaMemcpyAsync(c.a, pinned, 2 * kN * 4, cudaMemcpyHostToDevice, c.stream);
  if (!bug) cudaStreamSynchronize(c.stream);
  for (int i = 0; i < 2 * kN; ++i) pinned[i] = -1;
  const bool ok = start(double_kernel, kN, 0, c.stream, c.a, c.b) && c.doubled(c.b);
  cudaFreeHost(pinned);
  return ok;
}

bool read_without_waiting(bool bug) {
  Case c;
  float* pinned = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&pinned), 4);
  start(double_kernel, kN, 0, c.stream, c.a, c.b);
  cudaMemcpyAsync(pinned, c.b + 3, 4, cudaMemcpyDeviceToHost, c.stream);
  if (!bug) cudaStreamSynchronize(c.stream);
  const bool ok = *pinned == 2 * c.host[3];
  cudaStreamSynchronize(c.stream);
  cudaFreeHost(pinned);
  return ok;
}

/// (16 x 8) of b += (16 x 4) (4 x 8) of a, column-major.
bool product(std::int64_t leading, float beta, bool clear) {
  Case c;
  if (clear) cudaMemsetAsync(c.b, 0, 2 * kN * 4, c.stream);
  cublasLtHandle_t handle = nullptr;
  cublasLtCreate(&handle);
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, 16, 4, leading);
  cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, 4, 8, 4);
  cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, 16, 8, 16);
  const float one = 1;
  const bool called = cublasLtMatmul(handle, operation, &one, c.a, a, c.a + 64, b, &beta, c.b, d, c.b, d, nullptr, nullptr, 0, c.stream) == CUBLAS_STATUS_SUCCESS;
  float expected = 0;
  for (std::size_t k = 0; k < 4; ++k) expected += c.host[16 * k] * c.host[64 + k];
  const bool ok = called && c.read(c.b, 1)[0] == expected;
  for (cublasLtMatrixLayout_t layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(operation);
  cublasLtDestroy(handle);
  return ok;
}

bool wrong_leading_dimension(bool bug) { return product(bug ? 8 : 16, 0, false); }
bool adding_to_what_was_never_written(bool bug) { return product(16, 1, !bug); }

bool work_left_out_of_a_capture(bool bug) {
  Case c;
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(fork, c.stream);
  cudaStreamWaitEvent(c.other, fork, 0);
  start(double_kernel, kN, 0, c.other, c.a, c.b);
  cudaEventRecord(join, c.other);
  if (!bug) cudaStreamWaitEvent(c.stream, join, 0);
  cudaGraph_t graph = nullptr;
  bool ok = cudaStreamEndCapture(c.stream, &graph) == cudaSuccess;
  if (ok) {
    cudaGraphExec_t executable = nullptr;
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphLaunch(executable, c.stream);
    ok = c.doubled(c.b);
    cudaGraphExecDestroy(executable);
  }
  cudaGraphDestroy(graph);
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
  return ok;
}

}  // namespace

std::span<const PlantedBug> planted_bugs() {
  static const PlantedBug bugs[] = {
      {"no barrier before shared memory is read", Noticed::kDiffers, sum_case<1>},
      {"a barrier that some threads do not reach", Noticed::kStops, sum_case<2>},
      {"a thread returns before a barrier", Noticed::kStops, sum_case<3>},
      {"a lane outside its own mask", Noticed::kStops, shuffle_case},
      {"more shared memory than was asked for", Noticed::kFails, much_shared_memory},
      {"a host pointer given to a kernel", Noticed::kStops, host_pointer},
      {"freed memory given to a kernel", Noticed::kStops, freed_memory},
      {"more threads than a block may have", Noticed::kFails, too_many_threads},
      {"no wait between two streams", Noticed::kDiffers, missing_wait_between_streams},
      {"pinned memory used again too early", Noticed::kDiffers, pinned_memory_used_again},
      {"a result read before it is there", Noticed::kDiffers, read_without_waiting},
      {"a wrong leading dimension", Noticed::kFails, wrong_leading_dimension},
      {"adding to memory that was never written", Noticed::kDiffers, adding_to_what_was_never_written},
      {"a stream that does not come back to its capture", Noticed::kFails, work_left_out_of_a_capture},
  };
  return bugs;
}

}  // namespace relume::test
