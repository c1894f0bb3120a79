// Causal flash attention in fp32 tiles of 64 queries by 64 keys, nothing of size T x T; bf16 operands are widened as they are
// copied. One task is one sequence and one KV group; heads are copied into padded workspace first, because row strides that are
// multiples of 4096 bytes defeat the L1 cache.
//   forward   S = Q K^T, masked on the diagonal tile only; online softmax; O += P V, rescaled when a row's maximum grows.
//   backward  key tiles outside, query tiles at or below the diagonal inside; P = exp(S - lse) again, D = dO . O,
//             dS = P (dP - D) scale; dK and dV stay in the tile, dQ accumulates. Rows past the end are zero in q and dO.
// f64 (gradient checks only) takes the definition literally.
#include "attention.h"
#include "vector.h"

namespace relume::cpu::RELUME_ISA {

namespace {

/// Workspace of one thread, carved from the planned buffer; all parts are multiples of 64 bytes.
struct Scratch {
  std::int64_t padded, width;  // tokens and head_dim, rounded up to whole tiles and vectors
  float *q, *k, *v, *dout, *dq, *dk, *dv, *delta, *s, *p, *o, *kt, *vt;

  static RELUME_INLINE std::int64_t floats(const AttentionLayout& l, bool backward) {
    const std::int64_t rows = round_up(l.tokens, kTile), columns = round_up(l.head_dim, 16);
    return (backward ? 7 : 3) * rows * columns + (backward ? rows : 0) + 2 * kTile * kTile + (backward ? 2 : 1) * kTile * columns;
  }

  RELUME_INLINE Scratch(const AttentionLayout& l, bool backward, float* memory)
      : padded(round_up(l.tokens, kTile)), width(round_up(l.head_dim, 16)) {
    const auto take = [&memory](std::int64_t n) {
      float* part = memory;
      memory += n;
      return part;
    };
    q = take(padded * width);
    k = take(padded * width);
    v = take(padded * width);
    s = take(kTile * kTile);
    p = take(kTile * kTile);
    dout = dq = dk = dv = delta = kt = vt = o = nullptr;
    if (backward) {
      dout = take(padded * width);
      dq = take(padded * width);
      dk = take(padded * width);
      dv = take(padded * width);
      delta = take(padded);
      kt = take(kTile * width);
      vt = take(kTile * width);
    } else {
      o = take(kTile * width);
    }
  }
};

/// Copies one head (tokens, head_dim) into padded rows, times `scale`.
template <class T>
RELUME_INLINE void pack_rows(const T* from, std::int64_t stride, const AttentionLayout& l, const Scratch& w, float* to, float scale) {
  if (w.width != l.head_dim) zero(to, w.padded * w.width);
  for (std::int64_t t = 0; t < l.tokens; ++t)
#pragma omp simd
    for (std::int64_t d = 0; d < l.head_dim; ++d) to[t * w.width + d] = float(from[t * stride + d]) * scale;
  zero(to + l.tokens * w.width, (w.padded - l.tokens) * w.width);
}

/// Copies one head into transposed tiles: (padded / 64) tiles of (width, 64).
template <class T>
RELUME_INLINE void pack_transposed(const T* from, std::int64_t stride, const AttentionLayout& l, const Scratch& w, float* to) {
  zero(to, w.padded * w.width);
  for (std::int64_t t = 0; t < l.tokens; ++t) {
    float* tile = to + t / kTile * kTile * w.width + t % kTile;
    for (std::int64_t d = 0; d < l.head_dim; ++d) tile[d * kTile] = float(from[t * stride + d]);
  }
}

/// One tile of scores becomes probabilities (unnormalised); updates the running maximum, sum and output.
RELUME_INLINE void online_softmax(const Scratch& w, bool diagonal, float* maximum, float* sum) {
  for (std::int64_t i = 0; i < kTile; ++i) {
    float* s = w.s + i * kTile;
    if (diagonal)
      for (std::int64_t j = i + 1; j < kTile; ++j) s[j] = -1e30f;
    Vector m = load(s);
    for (int j = kLanes; j < kTile; j += kLanes) {
      const Vector x = load(s + j);
      m = m > x ? m : x;
    }
    const float tile_top = max_of(m), top = maximum[i] > tile_top ? maximum[i] : tile_top;
    const float shrink = maximum[i] == top ? 1.f : exponential(maximum[i] - top);
    Vector added{};
    for (int j = 0; j < kTile; j += kLanes) {
      const Vector e = exponential(load(s + j) - top);
      store(s + j, e);
      added += e;
    }
    sum[i] = sum[i] * shrink + sum_of(added);
    maximum[i] = top;
    if (shrink != 1.f)
      for (std::int64_t d = 0; d < w.width; d += kLanes) store(w.o + i * w.width + d, load(w.o + i * w.width + d) * shrink);
  }
}

template <class T>
RELUME_INLINE void forward_head(const AttentionArgs& args, const Head& h, const Scratch& w) {
  const AttentionLayout& l = args.layout;
  const float scale = 1.f / std::sqrt(static_cast<float>(l.head_dim));
  pack_rows(args.qkv.as<T>() + h.q, h.stride, l, w, w.q, scale);
  for (std::int64_t i0 = 0; i0 < w.padded; i0 += kTile) {
    float maximum[kTile], sum[kTile];
    for (int i = 0; i < kTile; ++i) {
      maximum[i] = -1e30f;
      sum[i] = 0;
    }
    zero(w.o, kTile * w.width);
    for (std::int64_t j0 = 0; j0 <= i0; j0 += kTile) {
      tile_product(kTile, kTile, w.width, {w.q + i0 * w.width, w.width, 1}, w.k + j0 * w.width, kTile, w.s, kTile, false);
      online_softmax(w, i0 == j0, maximum, sum);
      tile_product(kTile, w.width, kTile, {w.s, kTile, 1}, w.v + j0 * w.width, w.width, w.o, w.width, true);
    }
    T* out = args.out.as<T>() + h.out + i0 * h.out_stride;
    float* lse = args.lse.as<float>() + h.lse + i0;
    for (std::int64_t i = 0; i < at_most(kTile, l.tokens - i0); ++i) {
      const float r = 1.f / sum[i];
      for (std::int64_t d = 0; d < l.head_dim; ++d) put(out[i * h.out_stride + d], w.o[i * w.width + d] * r);
      lse[i] = maximum[i] + std::log(sum[i]);
    }
  }
}

/// P and dS of one tile, from the scores in w.p and dP in w.s.
RELUME_INLINE void softmax_gradient(const Scratch& w, std::int64_t i0, std::int64_t tokens, bool diagonal, const float* lse, float scale) {
  for (std::int64_t i = 0; i < kTile; ++i) {
    float *p = w.p + i * kTile, *s = w.s + i * kTile;
    if (diagonal)
      for (std::int64_t j = i + 1; j < kTile; ++j) p[j] = -1e30f;
    const float row_lse = i0 + i < tokens ? lse[i0 + i] : 0.f, delta = w.delta[i0 + i];
    for (int j = 0; j < kTile; j += kLanes) {
      const Vector e = exponential(load(p + j) * scale - row_lse);
      store(p + j, e);
      store(s + j, e * (load(s + j) - delta) * scale);
    }
    if (diagonal)  // the polynomial never returns an exact zero
      for (std::int64_t j = i + 1; j < kTile; ++j) p[j] = s[j] = 0;
  }
}

/// Adds the head's part of dk and dv to w.dk and w.dv, writes its dq into w.dq. w.k and w.v hold the group's rows.
template <class T>
RELUME_INLINE void backward_head(const AttentionGradientArgs& args, const Head& h, const Scratch& w) {
  const AttentionLayout& l = args.layout;
  const float scale = 1.f / std::sqrt(static_cast<float>(l.head_dim));
  pack_rows(args.qkv.as<T>() + h.q, h.stride, l, w, w.q, 1.f);
  pack_rows(args.dout.as<T>() + h.out, h.out_stride, l, w, w.dout, 1.f);
  for (std::int64_t t = 0; t < w.padded; ++t) w.delta[t] = delta_of<T>(args, h, t);
  zero(w.dq, w.padded * w.width);
  const float* lse = args.lse.as<float>() + h.lse;
  for (std::int64_t j0 = 0; j0 < w.padded; j0 += kTile) {
    const float *k = w.k + j0 * w.width, *v = w.v + j0 * w.width;
    for (std::int64_t j = 0; j < kTile; ++j)
      for (std::int64_t d = 0; d < w.width; ++d) {
        w.kt[d * kTile + j] = k[j * w.width + d];
        w.vt[d * kTile + j] = v[j * w.width + d];
      }
    for (std::int64_t i0 = j0; i0 < w.padded; i0 += kTile) {
      const float *q = w.q + i0 * w.width, *dout = w.dout + i0 * w.width;
      tile_product(kTile, kTile, w.width, {q, w.width, 1}, w.kt, kTile, w.p, kTile, false);
      tile_product(kTile, kTile, w.width, {dout, w.width, 1}, w.vt, kTile, w.s, kTile, false);
      softmax_gradient(w, i0, l.tokens, i0 == j0, lse, scale);
      tile_product(kTile, w.width, kTile, {w.p, 1, kTile}, dout, w.width, w.dv + j0 * w.width, w.width, true);
      tile_product(kTile, w.width, kTile, {w.s, 1, kTile}, q, w.width, w.dk + j0 * w.width, w.width, true);
      tile_product(kTile, w.width, kTile, {w.s, kTile, 1}, k, w.width, w.dq + i0 * w.width, w.width, true);
    }
  }
}

template <class T>
RELUME_INLINE void unpack(const AttentionLayout& l, const Scratch& w, const float* from, T* to, std::int64_t stride) {
  for (std::int64_t t = 0; t < l.tokens; ++t)
    for (std::int64_t d = 0; d < l.head_dim; ++d) put(to[t * stride + d], from[t * w.width + d]);
}

/// The definition, one query at a time, in f64. With `gradient` set, fills dqkv instead of out and lse.
void attention_f64(const AttentionLayout& l, const TensorView& qkv_view, double* out, double* lse, const double* dout, double* dqkv) {
  const double* qkv = qkv_view.as<double>();
  const std::int64_t rows = qkv_view.shape[0], D = l.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  if (dqkv) std::memset(dqkv, 0, static_cast<std::size_t>(qkv_view.bytes()));
  for (std::int64_t sequence = 0; sequence < rows / l.tokens; ++sequence)
    for (std::int64_t head = 0; head < l.heads; ++head) {
      const Head h = head_of(l, sequence, head);
      for (std::int64_t t = 0; t < l.tokens; ++t) {
        const double* q = qkv + h.q + t * h.stride;
        const auto score = [&](std::int64_t j) {
          double s = 0;
          for (std::int64_t d = 0; d < D; ++d) s += q[d] * qkv[h.k + j * h.stride + d];
          return s * scale;
        };
        double top = score(0), sum = 0;
        for (std::int64_t j = 1; j <= t; ++j) top = std::fmax(top, score(j));
        for (std::int64_t j = 0; j <= t; ++j) sum += std::exp(score(j) - top);
        if (!dqkv) {
          double* o = out + h.out + t * h.out_stride;
          for (std::int64_t d = 0; d < D; ++d) o[d] = 0;
          for (std::int64_t j = 0; j <= t; ++j)
            for (std::int64_t d = 0; d < D; ++d) o[d] += std::exp(score(j) - top) / sum * qkv[h.v + j * h.stride + d];
          lse[h.lse + t] = top + std::log(sum);
          continue;
        }
        const double* g = dout + h.out + t * h.out_stride;
        const auto dp = [&](std::int64_t j) {
          double s = 0;
          for (std::int64_t d = 0; d < D; ++d) s += g[d] * qkv[h.v + j * h.stride + d];
          return s;
        };
        double delta = 0;
        for (std::int64_t j = 0; j <= t; ++j) delta += std::exp(score(j) - top) / sum * dp(j);
        for (std::int64_t j = 0; j <= t; ++j) {
          const double p = std::exp(score(j) - top) / sum, ds = p * (dp(j) - delta) * scale;
          for (std::int64_t d = 0; d < D; ++d) {
            dqkv[h.q + t * h.stride + d] += ds * qkv[h.k + j * h.stride + d];
            dqkv[h.k + j * h.stride + d] += ds * q[d];
            dqkv[h.v + j * h.stride + d] += p * g[d];
          }
        }
      }
    }
}

RELUME_INLINE std::int64_t scratch_bytes(const AttentionLayout& l, DType dtype, bool backward) {
  return dtype == DType::f64 ? 0 : omp_get_max_threads() * round_up(Scratch::floats(l, backward) * 4, 64);
}

RELUME_INLINE float* scratch_of_thread(const AttentionLayout& l, bool backward, void* workspace, std::int64_t thread) {
  return static_cast<float*>(workspace) + thread * round_up(Scratch::floats(l, backward), 16);
}

template <class T>
RELUME_INLINE void forward(const AttentionArgs& args) {
  const AttentionLayout& l = args.layout;
  for_each_group(l, args.qkv.shape[0], [&](std::int64_t thread, const Head& group, auto for_each_head) {
    const Scratch w(l, false, scratch_of_thread(l, false, args.workspace, thread));
    pack_transposed(args.qkv.as<T>() + group.k, group.stride, l, w, w.k);
    pack_rows(args.qkv.as<T>() + group.v, group.stride, l, w, w.v, 1.f);
    for_each_head([&](const Head& h) { forward_head<T>(args, h, w); });
  });
}

template <class T>
RELUME_INLINE void backward(const AttentionGradientArgs& args) {
  const AttentionLayout& l = args.layout;
  for_each_group(l, args.qkv.shape[0], [&](std::int64_t thread, const Head& group, auto for_each_head) {
    const Scratch w(l, true, scratch_of_thread(l, true, args.workspace, thread));
    pack_rows(args.qkv.as<T>() + group.k, group.stride, l, w, w.k, 1.f);
    pack_rows(args.qkv.as<T>() + group.v, group.stride, l, w, w.v, 1.f);
    zero(w.dk, w.padded * w.width);
    zero(w.dv, w.padded * w.width);
    T* dqkv = args.dqkv.as<T>();
    for_each_head([&](const Head& h) {
      backward_head<T>(args, h, w);
      unpack(l, w, w.dq, dqkv + h.q, h.stride);  // this head's q was copied and is not read again
    });
    unpack(l, w, w.dk, dqkv + group.k, group.stride);
    unpack(l, w, w.dv, dqkv + group.v, group.stride);
  });
}

}  // namespace

std::int64_t attention_workspace(const AttentionArgs& args) {
#if defined(__AVX512BF16__)
  if (args.qkv.dtype == DType::bf16) return attention_bf16_workspace(args.layout);
#endif
  return scratch_bytes(args.layout, args.qkv.dtype, false);
}

void attention(const AttentionArgs& args, Stream) {
  const AttentionLayout& l = args.layout;
  if (args.qkv.dtype == DType::f64)
    return attention_f64(l, args.qkv, args.out.as<double>(), args.lse.as<double>(), nullptr, nullptr);
#if defined(__AVX512BF16__)
  if (args.qkv.dtype == DType::bf16) return attention_bf16(args);
#endif
  args.qkv.dtype == DType::bf16 ? forward<Bf16>(args) : forward<float>(args);
}

std::int64_t attention_gradient_workspace(const AttentionGradientArgs& args) {
#if defined(__AVX512BF16__)
  if (args.qkv.dtype == DType::bf16) return attention_bf16_gradient_workspace(args.layout);
#endif
  return scratch_bytes(args.layout, args.qkv.dtype, true) +
         (args.qkv.dtype == DType::f64 ? args.qkv.bytes() : 0);  // dqkv may be qkv: the plain loop needs a copy
}

void attention_gradient(const AttentionGradientArgs& args, Stream) {
  const AttentionLayout& l = args.layout;
  if (args.qkv.dtype == DType::f64) {
    TensorView copy = args.qkv;
    copy.data = args.workspace;
    std::memcpy(copy.data, args.qkv.data, static_cast<std::size_t>(args.qkv.bytes()));
    return attention_f64(l, copy, nullptr, nullptr, args.dout.as<double>(), args.dqkv.as<double>());
  }
#if defined(__AVX512BF16__)
  if (args.qkv.dtype == DType::bf16) return attention_bf16_gradient(args);
#endif
  args.qkv.dtype == DType::bf16 ? backward<Bf16>(args) : backward<float>(args);
}

}  // namespace relume::cpu::RELUME_ISA
