// Flash attention, forward and backward, on plain arithmetic units: any head size to 256, any length, f32 sums. What the tensor-core
// library does not take (and all of it where there is none).
//
// A block holds 32 rows of one head; four neighbouring threads share a row, each with every fourth of its dimensions in registers.
// Tiles of 32 rows of the other side lie in shared memory as f32.
#include "attention.h"
#include "cuda.cuh"

namespace relume::cuda {

namespace {

constexpr int kTile = 32, kParts = 4, kBlock = kTile * kParts;

/// Rows of one head within a matrix of more columns.
template <class T>
struct Columns {
  T* data;             // first row of the sequence, first column of the head
  std::int64_t stride;  // elements between rows
};

struct Heads {
  std::int64_t tokens, heads, kv_heads, head_dim;

  __device__ __forceinline__ std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
  __device__ __forceinline__ std::int64_t group() const { return heads / kv_heads; }
  /// Query head h of sequence b in a packed qkv; key and value head g.
  template <class T>
  __device__ __forceinline__ Columns<T> query(T* qkv, std::int64_t b, std::int64_t h) const {
    return {qkv + b * tokens * columns() + h * head_dim, columns()};
  }
  template <class T>
  __device__ __forceinline__ Columns<T> key(T* qkv, std::int64_t b, std::int64_t g) const {
    return {qkv + b * tokens * columns() + (heads + g) * head_dim, columns()};
  }
  template <class T>
  __device__ __forceinline__ Columns<T> value(T* qkv, std::int64_t b, std::int64_t g) const {
    return {qkv + b * tokens * columns() + (heads + kv_heads + g) * head_dim, columns()};
  }
  /// Head h of the output.
  template <class T>
  __device__ __forceinline__ Columns<T> out(T* data, std::int64_t b, std::int64_t h) const {
    return {data + b * tokens * heads * head_dim + h * head_dim, heads * head_dim};
  }
};

/// This thread's dimensions of a row; zeros beyond the last row and dimension.
template <int D, class T>
__device__ __forceinline__ void load_row(float (&x)[D], Columns<T> from, std::int64_t row, const Heads& l, int part, float scale = 1.f) {
  for (int i = 0; i < D; ++i) {
    const int d = part + kParts * i;
    x[i] = row < l.tokens && d < l.head_dim ? to_float(from.data[row * from.stride + d]) * scale : 0.f;
  }
}

template <int D, class T>
__device__ __forceinline__ void store_row(const float (&x)[D], T* to, std::int64_t stride, std::int64_t row, const Heads& l, int part, float scale = 1.f) {
  if (row >= l.tokens) return;
  for (int i = 0; i < D; ++i) {
    const int d = part + kParts * i;
    if (d < l.head_dim) put(to[row * stride + d], x[i] * scale);
  }
}

/// The block fetches 32 rows; rows beyond the sequence are zeros.
template <class T>
__device__ __forceinline__ void load_tile(float* tile, Columns<T> from, std::int64_t first, const Heads& l) {
  for (std::int64_t i = threadIdx.x; i < kTile * l.head_dim; i += kBlock) {
    const std::int64_t row = first + i / l.head_dim;
    tile[i] = row < l.tokens ? to_float(from.data[row * from.stride + i % l.head_dim]) : 0.f;
  }
}

/// Inner product of the row that four threads share with row j of a tile; all four get it.
template <int D>
__device__ __forceinline__ float dot(const float (&x)[D], const float* tile, int j, const Heads& l, int part) {
  const float* row = tile + j * l.head_dim;
  float sum = 0;
  for (int i = 0; i < D; ++i)
    if (part + kParts * i < l.head_dim) sum += x[i] * row[part + kParts * i];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum;
}

/// x += factor * row j of a tile.
template <int D>
__device__ __forceinline__ void add_row(float (&x)[D], float factor, const float* tile, int j, const Heads& l, int part) {
  const float* row = tile + j * l.head_dim;
  for (int i = 0; i < D; ++i)
    if (part + kParts * i < l.head_dim) x[i] += factor * row[part + kParts * i];
}

template <class T, int D>
__global__ void __launch_bounds__(kBlock) attention_kernel(const T* qkv, T* out, float* lse, Heads l) {
  float *keys = dynamic_shared<float>(), *values = keys + kTile * l.head_dim;
  const int part = threadIdx.x % kParts;
  const std::int64_t h = blockIdx.y, b = blockIdx.z, g = h / l.group(), t = blockIdx.x * std::int64_t{kTile} + threadIdx.x / kParts;
  float q[D], o[D] = {};
  load_row(q, l.query(qkv, b, h), t, l, part, rsqrtf(static_cast<float>(l.head_dim)));
  float top = -INFINITY, sum = 0;
  for (std::int64_t first = 0; first <= blockIdx.x * std::int64_t{kTile}; first += kTile) {
    __syncthreads();
    load_tile(keys, l.key(qkv, b, g), first, l);
    load_tile(values, l.value(qkv, b, g), first, l);
    __syncthreads();
    float s[kTile], highest = top;
    for (int j = 0; j < kTile; ++j) {
      s[j] = dot(q, keys, j, l, part);
      if (first + j > t) s[j] = -INFINITY;
      highest = s[j] > highest ? s[j] : highest;
    }
    const float rescale = top > -INFINITY ? __expf(top - highest) : 0.f;  // key 0 is never masked, so highest is finite
    sum *= rescale;
    for (int i = 0; i < D; ++i) o[i] *= rescale;
    for (int j = 0; j < kTile; ++j) {
      const float p = __expf(s[j] - highest);
      sum += p;
      add_row(o, p, values, j, l, part);
    }
    top = highest;
  }
  const Columns<T> to = l.out(out, b, h);
  store_row(o, to.data, to.stride, t, l, part, 1.f / sum);
  if (part == 0 && t < l.tokens) lse[(b * l.heads + h) * l.tokens + t] = top + __logf(sum);
}

/// delta = sum of dout * out, a row of a head.
template <class T, int D>
__global__ void __launch_bounds__(kBlock) attention_delta_kernel(const T* out, const T* dout, float* delta, Heads l) {
  const int part = threadIdx.x % kParts;
  const std::int64_t h = blockIdx.y, b = blockIdx.z, t = blockIdx.x * std::int64_t{kTile} + threadIdx.x / kParts;
  float x[D], d[D];
  load_row(x, l.out(out, b, h), t, l, part);
  load_row(d, l.out(dout, b, h), t, l, part);
  float sum = 0;
  for (int i = 0; i < D; ++i) sum += x[i] * d[i];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (part == 0 && t < l.tokens) delta[(b * l.heads + h) * l.tokens + t] = sum;
}

/// dk and dv of 32 keys of one key head: all its query heads and later rows in turn, so nothing is added from two places.
/// `gradient` holds dk, then dv: (N, 2 kv_heads head_dim).
template <class T, int D>
__global__ void __launch_bounds__(kBlock) attention_key_gradient_kernel(const T* qkv, const T* dout, const float* lse, const float* delta, T* gradient, Heads l) {
  float *queries = dynamic_shared<float>(), *douts = queries + kTile * l.head_dim, *row_lse = douts + kTile * l.head_dim, *row_delta = row_lse + kTile;
  const int part = threadIdx.x % kParts;
  const std::int64_t g = blockIdx.y, b = blockIdx.z, s = blockIdx.x * std::int64_t{kTile} + threadIdx.x / kParts;
  const float scale = rsqrtf(static_cast<float>(l.head_dim));
  float k[D], v[D], dk[D] = {}, dv[D] = {};
  load_row(k, l.key(qkv, b, g), s, l, part, scale);
  load_row(v, l.value(qkv, b, g), s, l, part);
  for (std::int64_t h = g * l.group(); h < (g + 1) * l.group(); ++h)
    for (std::int64_t first = blockIdx.x * std::int64_t{kTile}; first < l.tokens; first += kTile) {
      __syncthreads();
      load_tile(queries, l.query(qkv, b, h), first, l);
      load_tile(douts, l.out(dout, b, h), first, l);
      if (threadIdx.x < kTile) {
        const std::int64_t t = first + threadIdx.x, at = (b * l.heads + h) * l.tokens + t;
        row_lse[threadIdx.x] = t < l.tokens ? lse[at] : INFINITY;  // exp(s - inf) = 0: rows beyond the end add nothing
        row_delta[threadIdx.x] = t < l.tokens ? delta[at] : 0.f;
      }
      __syncthreads();
#pragma unroll 2  // more would spill
      for (int j = 0; j < kTile; ++j) {
        const float score = dot(k, queries, j, l, part), dp = dot(v, douts, j, l, part);
        const float p = first + j >= s ? __expf(score - row_lse[j]) : 0.f;
        add_row(dv, p, douts, j, l, part);
        add_row(dk, p * (dp - row_delta[j]), queries, j, l, part);
      }
    }
  const std::int64_t width = 2 * l.kv_heads * l.head_dim;
  T* row0 = gradient + b * l.tokens * width + g * l.head_dim;
  store_row(dk, row0, width, s, l, part, scale);
  store_row(dv, row0 + l.kv_heads * l.head_dim, width, s, l, part);
}

/// dq of 32 queries; written over the queries that only this block reads, where dqkv is qkv.
template <class T, int D>
__global__ void __launch_bounds__(kBlock) attention_query_gradient_kernel(const T* qkv, const T* dout, const float* lse, const float* delta, T* dqkv, Heads l) {
  float *keys = dynamic_shared<float>(), *values = keys + kTile * l.head_dim;
  const int part = threadIdx.x % kParts;
  const std::int64_t h = blockIdx.y, b = blockIdx.z, g = h / l.group(), t = blockIdx.x * std::int64_t{kTile} + threadIdx.x / kParts;
  const std::int64_t at = (b * l.heads + h) * l.tokens + t;
  const float scale = rsqrtf(static_cast<float>(l.head_dim));
  const float row_lse = t < l.tokens ? lse[at] : INFINITY, row_delta = t < l.tokens ? delta[at] : 0.f;
  float q[D], d[D], dq[D] = {};
  load_row(q, l.query(qkv, b, h), t, l, part, scale);
  load_row(d, l.out(dout, b, h), t, l, part);
  for (std::int64_t first = 0; first <= blockIdx.x * std::int64_t{kTile}; first += kTile) {
    __syncthreads();
    load_tile(keys, l.key(qkv, b, g), first, l);
    load_tile(values, l.value(qkv, b, g), first, l);
    __syncthreads();
#pragma unroll 2
    for (int j = 0; j < kTile; ++j) {
      const float score = dot(q, keys, j, l, part), dp = dot(d, values, j, l, part);
      const float p = first + j <= t ? __expf(score - row_lse) : 0.f;
      add_row(dq, p * (dp - row_delta), keys, j, l, part);
    }
  }
  const Columns<T> to = l.query(dqkv, b, h);
  store_row(dq, to.data, to.stride, t, l, part, scale);
}

/// dk and dv to their columns of dqkv.
template <class T>
__global__ void __launch_bounds__(kThreads) attention_place_kernel(const T* gradient, T* dqkv, Heads l) {
  const std::int64_t width = 2 * l.kv_heads * l.head_dim;
  const T* from = gradient + blockIdx.x * width;
  T* to = dqkv + blockIdx.x * l.columns() + l.heads * l.head_dim;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = from[i];
}

/// Calls f with the number of dimensions a thread holds.
template <class F>
void for_head_dim(std::int64_t head_dim, F&& f) {
  if (head_dim <= 32)
    f(std::integral_constant<int, 8>{});
  else if (head_dim <= 64)
    f(std::integral_constant<int, 16>{});
  else if (head_dim <= 128)
    f(std::integral_constant<int, 32>{});
  else
    f(std::integral_constant<int, 64>{});
}

Heads heads_of(const AttentionLayout& l) { return {l.tokens, l.heads, l.kv_heads, l.head_dim}; }
unsigned tiles_of(const AttentionLayout& l) { return static_cast<unsigned>((l.tokens + kTile - 1) / kTile); }
std::int64_t delta_bytes(const TensorView& lse) { return (lse.shape.elements() * 4 + 255) / 256 * 256; }

}  // namespace

void plain_attention(const AttentionArgs& args, Stream stream) {
  const AttentionLayout& l = args.layout;
  const dim3 grid(tiles_of(l), static_cast<unsigned>(l.heads), static_cast<unsigned>(args.qkv.shape[0] / l.tokens));
  for_dtype(args.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    for_head_dim(l.head_dim, [&](auto dimensions) {
      start("attention", attention_kernel<T, decltype(dimensions)::value>, grid, kBlock, static_cast<std::size_t>(2 * kTile * l.head_dim) * 4, stream,
            args.qkv.as<const T>(), args.out.as<T>(), args.lse.as<float>(), heads_of(l));
    });
  });
}

std::int64_t plain_attention_gradient_workspace(const AttentionGradientArgs& args) {
  const AttentionLayout& l = args.layout;
  return delta_bytes(args.lse) + args.qkv.shape[0] * 2 * l.kv_heads * l.head_dim * size_of(args.qkv.dtype);
}

void plain_attention_gradient(const AttentionGradientArgs& args, Stream stream) {
  const AttentionLayout& l = args.layout;
  const auto sequences = static_cast<unsigned>(args.qkv.shape[0] / l.tokens);
  const dim3 query_grid(tiles_of(l), static_cast<unsigned>(l.heads), sequences), key_grid(tiles_of(l), static_cast<unsigned>(l.kv_heads), sequences);
  const auto tiles_bytes = static_cast<std::size_t>(2 * kTile * l.head_dim) * 4;
  auto* delta = static_cast<float*>(args.workspace);
  for_dtype(args.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    T* gradient = reinterpret_cast<T*>(static_cast<char*>(args.workspace) + delta_bytes(args.lse));
    for_head_dim(l.head_dim, [&](auto dimensions) {
      constexpr int D = decltype(dimensions)::value;
      const auto *qkv = args.qkv.as<const T>(), *dout = args.dout.as<const T>();
      const auto* lse = args.lse.as<const float>();
      start("attention_gradient", attention_delta_kernel<T, D>, query_grid, kBlock, 0, stream, args.out.as<const T>(), dout, delta, heads_of(l));
      start("attention_gradient", attention_key_gradient_kernel<T, D>, key_grid, kBlock, tiles_bytes + 2 * kTile * 4, stream, qkv, dout, lse,
            static_cast<const float*>(delta), gradient, heads_of(l));
      start("attention_gradient", attention_query_gradient_kernel<T, D>, query_grid, kBlock, tiles_bytes, stream, qkv, dout, lse, static_cast<const float*>(delta),
            args.dqkv.as<T>(), heads_of(l));
    });
    start("attention_gradient", attention_place_kernel<T>, static_cast<unsigned>(args.qkv.shape[0]), kThreads, 0, stream, static_cast<const T*>(gradient), args.dqkv.as<T>(),
          heads_of(l));
  });
}

}  // namespace relume::cuda
