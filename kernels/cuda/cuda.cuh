// What every CUDA kernel file includes: the device language under nvcc, the emulator under a host compiler, and what kernels
// share. The only place that asks which of the two compiles.
//
// Rules: kernels start only through start(); shared memory that depends on shapes comes from dynamic_shared(); no float
// atomics, no order that depends on the device, so that a step gives the same bits every time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#ifdef __CUDACC__
namespace relume::cuda {
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char relume_dynamic_shared[];
  return reinterpret_cast<T*>(relume_dynamic_shared);
}
}  // namespace relume::cuda
#else
#include "device.h"  // tests/cuda_emu
namespace relume::cuda {
template <class T>
inline T* dynamic_shared() {
  return static_cast<T*>(emu::dyn_smem(alignof(T)));
}
}  // namespace relume::cuda
#endif

#include "relume/backend/kernels.h"

namespace relume::cuda {

using Bf16 = __nv_bfloat16;

/// Throws kRuntime with the call's name and CUDA's text for anything but success. (src/backend/cuda)
void check(cudaError_t error, const char* what);

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 2112;  // of kernels that stride over their work: 16 a multiprocessor of an H100
constexpr int kWarp = 32;

inline cudaStream_t stream_of(Stream s) { return static_cast<cudaStream_t>(s.handle); }

/// The only way to start a kernel: an error is thrown where it happens.
template <class... P, class... A>
void start(const char* name, void (*kernel)(P...), dim3 grid, int threads, std::size_t shared_bytes, Stream stream, A&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  constexpr std::size_t kWithoutAsking = 48 << 10;
  if (shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), name);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(stream);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...), name);
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block = kThreads) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// Calls f with a value of the element type of an activation.
template <class F>
void for_dtype(DType dtype, F&& f) {
  if (dtype == DType::bf16)
    f(Bf16{});
  else
    f(float{});
}

/// Elements of T in the widest access, if rows of so many columns consist of whole ones; else 1.
template <class T, class F>
void for_width(std::int64_t columns, F&& f) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  if (columns % kWide == 0)
    f(std::integral_constant<int, kWide>{});
  else
    f(std::integral_constant<int, 1>{});
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void put(float& y, float x) { y = x; }
__device__ __forceinline__ void put(Bf16& y, float x) { y = __float2bfloat16(x); }
/// x as it is after being stored.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  T y;
  put(y, x);
  return to_float(y);
}

/// W elements in one access.
template <class T, int W>
struct alignas(sizeof(T) * W) Pack {
  T v[W];
};
template <int W, class T>
__device__ __forceinline__ Pack<T, W> load(const T* p) {
  return *reinterpret_cast<const Pack<T, W>*>(p);
}
template <int W, class T>
__device__ __forceinline__ void store(T* p, const Pack<T, W>& pack) {
  *reinterpret_cast<Pack<T, W>*>(p) = pack;
}

/// Sum over the block, in an order that depends on the block size alone; every thread gets it. All threads must call it.
template <int Threads, class A>
__device__ __forceinline__ A block_sum(A x) {
  __shared__ A partial[Threads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  A sum = partial[0];
  for (int w = 1; w < Threads / kWarp; ++w) sum += partial[w];
  __syncthreads();
  return sum;
}

template <int Threads, class A>
__device__ __forceinline__ A block_max(A x) {
  __shared__ A partial[Threads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, x, step);
    x = other > x ? other : x;
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  A most = partial[0];
  for (int w = 1; w < Threads / kWarp; ++w) most = partial[w] > most ? partial[w] : most;
  __syncthreads();
  return most;
}

/// Sum of the values of lower threads of the block, and of all in `total`.
template <int Threads, class A>
__device__ __forceinline__ A block_prefix(A x, A& total) {
  __shared__ A partial[Threads / kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  A inclusive = x;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const A below = __shfl_up_sync(0xffffffffu, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == kWarp - 1) partial[warp] = inclusive;
  __syncthreads();
  A before = 0;
  total = 0;
  for (unsigned w = 0; w < Threads / kWarp; ++w) {
    if (w < warp) before += partial[w];
    total += partial[w];
  }
  __syncthreads();
  return before + inclusive - x;
}

// Every entry of the kernel table; the files beside this one define them.
void add(const AddArgs&, Stream);
void embedding(const EmbeddingArgs&, Stream);
void embedding_gradient(const EmbeddingGradientArgs&, Stream);
void rms_norm(const RmsNormArgs&, Stream);
void rms_norm_gradient(const RmsNormGradientArgs&, Stream);
std::int64_t rms_norm_gradient_workspace(const RmsNormGradientArgs&);
void matmul(const MatmulArgs&, Stream);
std::int64_t matmul_workspace(const MatmulArgs&);
void rope(const RopeArgs&, Stream);
void attention(const AttentionArgs&, Stream);
std::int64_t attention_workspace(const AttentionArgs&);
void attention_gradient(const AttentionGradientArgs&, Stream);
std::int64_t attention_gradient_workspace(const AttentionGradientArgs&);
void cached_attention(const CachedAttentionArgs&, Stream);
void swiglu(const SwigluArgs&, Stream);
void swiglu_gradient(const SwigluGradientArgs&, Stream);
void linear_cross_entropy(const LinearCrossEntropyArgs&, Stream);
std::int64_t linear_cross_entropy_workspace(const LinearCrossEntropyArgs&);
void gather_components(const GatherComponentsArgs&, Stream);
void scatter_add_components(const ScatterAddComponentsArgs&, Stream);
void scale_components(const ScaleComponentsArgs&, Stream);
void component_scores(const ComponentScoresArgs&, Stream);
std::int64_t component_scores_workspace(const ComponentScoresArgs&);
void select_top_k(const SelectTopKArgs&, Stream);
void select_sketch(const SelectSketchArgs&, Stream);
void sum_of_squares(const SumOfSquaresArgs&, Stream);
std::int64_t sum_of_squares_workspace(const SumOfSquaresArgs&);
void adamw(const AdamwArgs&, Stream);
void round_to_bf16(const RoundToBf16Args&, Stream);

}  // namespace relume::cuda
