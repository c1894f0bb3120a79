// Causal flash attention in bf16 tiles for processors with vdpbf16ps, which multiplies pairs of bf16 and adds them to fp32.
// A product C += A B takes A as rows of pairs along the depth, and B as "paired rows": word (k, j) holds B(2k, j), B(2k+1, j).
//   forward   S = Q K^T, online softmax in fp32 with P rounded to bf16, O += P V.
//   backward  transposed tiles, so that every operand is a row or a pair of rows of something computed: S^T = K Q^T,
//             dP^T = V dO^T, P^T = exp(S^T scale - lse), dS^T = P^T (dP^T - D) scale; dV += P^T dO, dK += dS^T Q,
//             dQ^T += K^T dS^T.
// Maxima, sums and all accumulators are fp32. Queries past the end are zero in Q and dO and so add nothing.
#include "attention.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#include <omp.h>

#include "vector.h"

namespace relume::cpu::RELUME_ISA {

namespace {

using Pair = std::uint32_t;  // two bf16, the lower one first
constexpr std::int64_t kTilePairs = kTile / 2;

RELUME_INLINE __m512i load_pairs(const Pair* p) { return _mm512_loadu_si512(p); }
RELUME_INLINE void store_pairs(Pair* p, __m512i v) { _mm512_storeu_si512(p, v); }

/// c (kRows, 16 kVectors) [+]= a b over `depth` pairs.
template <int kRows, int kVectors>
RELUME_INLINE void pair_block(std::int64_t depth, const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c,
                              std::int64_t ldc, bool accumulate) {
  __m512 sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) sum[i][j] = accumulate ? _mm512_loadu_ps(c + i * ldc + j * 16) : _mm512_setzero_ps();
  for (std::int64_t k = 0; k < depth; ++k) {
    __m512i row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = load_pairs(b + k * ldb + j * 16);
    for (int i = 0; i < kRows; ++i) {
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i * lda + k])));
      for (int j = 0; j < kVectors; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], pair, reinterpret_cast<__m512bh>(row[j]));
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(c + i * ldc + j * 16, sum[i][j]);
}

template <int kVectors>
RELUME_INLINE void pair_columns(std::int64_t rows, std::int64_t depth, const Pair* a, std::int64_t lda, const Pair* b,
                                std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  std::int64_t i = 0;
  for (; i + 6 <= rows; i += 6) pair_block<6, kVectors>(depth, a + i * lda, lda, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 2 <= rows; i += 2) pair_block<2, kVectors>(depth, a + i * lda, lda, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < rows; ++i) pair_block<1, kVectors>(depth, a + i * lda, lda, b, ldb, c + i * ldc, ldc, accumulate);
}

/// c (rows, columns) [+]= a b over `depth` pairs; columns a multiple of 16.
void pair_product(std::int64_t rows, std::int64_t columns, std::int64_t depth, const Pair* a, std::int64_t lda, const Pair* b,
                  std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  std::int64_t j = 0;
  for (; j + 64 <= columns; j += 64) pair_columns<4>(rows, depth, a, lda, b + j, ldb, c + j, ldc, accumulate);
  for (; j < columns; j += 16) pair_columns<1>(rows, depth, a, lda, b + j, ldb, c + j, ldc, accumulate);
}

/// 32 floats as 32 bf16 in order.
RELUME_INLINE __m512i round_32(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }
/// Word j = (bf16 of a[j], bf16 of b[j]).
RELUME_INLINE __m512i round_pairs(__m512 a, __m512 b) {
  const __m512i low = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
  const __m512i high = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(b)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// r[j] becomes column j of the 16 x 16 words r.
RELUME_INLINE void transpose_16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

/// A tile of rows of one head: `rows` of kTile exist, the others are zero. `depth` pairs a row, `stride` pairs apart.
struct TileRows {
  const Pair* data;
  std::int64_t stride, rows, depth;
};

RELUME_INLINE __m512i load_row(const TileRows& x, std::int64_t row, std::int64_t pair) {
  if (row >= x.rows) return _mm512_setzero_si512();
  const std::int64_t left = x.depth - pair;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
  return _mm512_maskz_loadu_epi32(mask, x.data + row * x.stride + pair);
}

/// to (kTile, width / 2): the rows themselves, as the A of products along the head; columns past the head are zero.
RELUME_INLINE void copy_rows(const TileRows& x, std::int64_t width, Pair* to) {
  for (std::int64_t i = 0; i < kTile; ++i)
    for (std::int64_t c = 0; c < width / 2; c += 8)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * (width / 2) + c), _mm512_castsi512_si256(load_row(x, i, c)));
}

/// to (width / 2, kTile): word (c, i) = pair c of row i, as the B of products along the head.
RELUME_INLINE void pair_along_head(const TileRows& x, std::int64_t width, Pair* to) {
  for (std::int64_t i = 0; i < kTile; i += 16)
    for (std::int64_t c = 0; c < width / 2; c += 16) {
      __m512i r[16];
      for (int k = 0; k < 16; ++k) r[k] = load_row(x, i + k, c);
      transpose_16(r);
      for (int k = 0; k < 16 && c + k < width / 2; ++k) store_pairs(to + (c + k) * kTile + i, r[k]);
    }
}

/// to (kTile / 2, width): word (i, c) = (row 2i, row 2i + 1) of column c, as the B of products along the rows.
RELUME_INLINE void pair_along_rows(const TileRows& x, std::int64_t width, Pair* to) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
                                              3, 18, 2, 17, 1, 16, 0);
  for (std::int64_t i = 0; i < kTilePairs; ++i)
    for (std::int64_t c = 0; c < width; c += 16) {
      const __m256i a = _mm512_castsi512_si256(load_row(x, 2 * i, c / 2)), b = _mm512_castsi512_si256(load_row(x, 2 * i + 1, c / 2));
      store_pairs(to + i * width + c, _mm512_permutexvar_epi16(interleave, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)));
    }
}

/// to (width, kTile / 2): row c = column c, in pairs of rows, as the A of products along the rows. `paired` is what
/// pair_along_rows made.
RELUME_INLINE void transpose_pairs(const Pair* paired, std::int64_t width, Pair* to) {
  for (std::int64_t i = 0; i < kTilePairs; i += 16)
    for (std::int64_t c = 0; c < width; c += 16) {
      __m512i r[16];
      for (int k = 0; k < 16; ++k) r[k] = load_pairs(paired + (i + k) * width + c);
      transpose_16(r);
      for (int k = 0; k < 16; ++k) store_pairs(to + (c + k) * kTilePairs + i, r[k]);
    }
}

/// Memory of one thread, carved from the planned workspace; with null memory it only counts.
class Carver {
 public:
  RELUME_INLINE explicit Carver(char* memory) : memory_(memory) {}
  template <class T>
  RELUME_INLINE T* take(std::int64_t n) {
    char* part = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ += round_up(n * static_cast<std::int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(part);
  }
  [[nodiscard]] RELUME_INLINE std::int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  std::int64_t bytes_ = 0;
};

struct Extents {
  std::int64_t padded, width, tiles, tile_pairs;  // tokens and head_dim rounded up; tiles; pairs of a tile of rows

  RELUME_INLINE explicit Extents(const AttentionLayout& l)
      : padded(round_up(l.tokens, kTile)), width(round_up(l.head_dim, 16)), tiles(padded / kTile), tile_pairs(kTile * width / 2) {}
};

struct ForwardScratch {
  Pair *k_along_head, *v_along_rows, *q, *p;
  float *s, *o;

  RELUME_INLINE ForwardScratch(const Extents& e, Carver& c)
      : k_along_head(c.take<Pair>(e.tiles * e.tile_pairs)),
        v_along_rows(c.take<Pair>(e.tiles * e.tile_pairs)),
        q(c.take<Pair>(e.tile_pairs)),
        p(c.take<Pair>(kTile * kTilePairs)),
        s(c.take<float>(kTile * kTile)),
        o(c.take<float>(kTile * e.width)) {}
};

struct BackwardScratch {
  Pair *k, *v, *k_transposed;                                          // of the group
  Pair *q_along_head, *q_along_rows, *dout_along_head, *dout_along_rows;  // of the head
  Pair *p, *ds, *ds_along_rows;                                        // of a tile
  float *dk, *dv, *dq_transposed, *delta, *lse, *s, *dp;

  RELUME_INLINE BackwardScratch(const Extents& e, Carver& c)
      : k(c.take<Pair>(e.tiles * e.tile_pairs)),
        v(c.take<Pair>(e.tiles * e.tile_pairs)),
        k_transposed(c.take<Pair>(e.tiles * e.tile_pairs)),
        q_along_head(c.take<Pair>(e.tiles * e.tile_pairs)),
        q_along_rows(c.take<Pair>(e.tiles * e.tile_pairs)),
        dout_along_head(c.take<Pair>(e.tiles * e.tile_pairs)),
        dout_along_rows(c.take<Pair>(e.tiles * e.tile_pairs)),
        p(c.take<Pair>(kTile * kTilePairs)),
        ds(c.take<Pair>(kTile * kTilePairs)),
        ds_along_rows(c.take<Pair>(kTilePairs * kTile)),
        dk(c.take<float>(e.padded * e.width)),
        dv(c.take<float>(e.padded * e.width)),
        dq_transposed(c.take<float>(e.padded * e.width)),
        delta(c.take<float>(e.padded)),
        lse(c.take<float>(e.padded)),
        s(c.take<float>(kTile * kTile)),
        dp(c.take<float>(kTile * kTile)) {}
};

template <class Scratch>
RELUME_INLINE std::int64_t bytes_of_thread(const AttentionLayout& l) {
  Carver counter(nullptr);
  const Scratch counted(Extents(l), counter);
  (void)counted;
  return counter.bytes();
}

RELUME_INLINE TileRows tile_of(const TensorView& x, std::int64_t first, std::int64_t stride, const AttentionLayout& l, std::int64_t tile) {
  const auto* data = reinterpret_cast<const Pair*>(x.as<Bf16>() + first + tile * kTile * stride);
  return {data, stride / 2, at_most(kTile, l.tokens - tile * kTile), l.head_dim / 2};
}

/// Columns of a row of the diagonal tile that lie after the row: keys after the query, or queries before the key.
RELUME_INLINE __mmask16 columns_after(std::int64_t row, std::int64_t first) {
  const std::int64_t visible = row + 1 - first;
  return visible <= 0 ? static_cast<__mmask16>(0xFFFF) : visible >= 16 ? static_cast<__mmask16>(0) : static_cast<__mmask16>(0xFFFF << visible);
}

/// One tile of scores becomes probabilities (unnormalised) in bf16; updates the running maximum, sum and output.
RELUME_INLINE void online_softmax(const ForwardScratch& w, const Extents& e, bool diagonal, float scale, float* maximum, float* sum) {
  for (std::int64_t i = 0; i < kTile; ++i) {
    __m512 s[4];
    for (int j = 0; j < 4; ++j) {
      s[j] = _mm512_mul_ps(_mm512_loadu_ps(w.s + i * kTile + 16 * j), _mm512_set1_ps(scale));
      if (diagonal) s[j] = _mm512_mask_mov_ps(s[j], columns_after(i, 16 * j), _mm512_set1_ps(-1e30f));
    }
    const float tile_top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
    const float top = maximum[i] > tile_top ? maximum[i] : tile_top;
    const float shrink = maximum[i] == top ? 1.f : exponential(maximum[i] - top);
    for (__m512& x : s) x = exponential(Vector(x) - top);
    sum[i] = sum[i] * shrink + _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
    maximum[i] = top;
    store_pairs(w.p + i * kTilePairs, round_32(s[0], s[1]));
    store_pairs(w.p + i * kTilePairs + 16, round_32(s[2], s[3]));
    if (shrink != 1.f)
      for (std::int64_t d = 0; d < e.width; d += kLanes) store(w.o + i * e.width + d, load(w.o + i * e.width + d) * shrink);
  }
}

RELUME_INLINE void forward_head(const AttentionArgs& args, const Head& h, const Extents& e, const ForwardScratch& w) {
  const AttentionLayout& l = args.layout;
  const float scale = 1.f / std::sqrt(static_cast<float>(l.head_dim));
  for (std::int64_t i = 0; i < e.tiles; ++i) {
    float maximum[kTile], sum[kTile];
    for (int r = 0; r < kTile; ++r) {
      maximum[r] = -1e30f;
      sum[r] = 0;
    }
    zero(w.o, kTile * e.width);
    copy_rows(tile_of(args.qkv, h.q, h.stride, l, i), e.width, w.q);
    for (std::int64_t j = 0; j <= i; ++j) {
      pair_product(kTile, kTile, e.width / 2, w.q, e.width / 2, w.k_along_head + j * e.tile_pairs, kTile, w.s, kTile, false);
      online_softmax(w, e, i == j, scale, maximum, sum);
      pair_product(kTile, e.width, kTilePairs, w.p, kTilePairs, w.v_along_rows + j * e.tile_pairs, e.width, w.o, e.width, true);
    }
    Bf16* out = args.out.as<Bf16>() + h.out + i * kTile * h.out_stride;
    float* lse = args.lse.as<float>() + h.lse + i * kTile;
    for (std::int64_t r = 0; r < at_most(kTile, l.tokens - i * kTile); ++r) {
      const float inverse = 1.f / sum[r];
#pragma omp simd
      for (std::int64_t d = 0; d < l.head_dim; ++d) put(out[r * h.out_stride + d], w.o[r * e.width + d] * inverse);
      lse[r] = maximum[r] + std::log(sum[r]);
    }
  }
}

/// P^T and dS^T of one tile in bf16, rows and paired rows, from S^T in w.s and dP^T in w.dp. Row = key, column = query.
RELUME_INLINE void softmax_gradient(const BackwardScratch& w, bool diagonal, float scale, const float* lse, const float* delta) {
  for (std::int64_t i = 0; i < kTile; i += 2)
    for (std::int64_t c = 0; c < kTile; c += 32) {
      __m512 p[2][2], ds[2][2];  // [row][half]
      for (int r = 0; r < 2; ++r)
        for (int half = 0; half < 2; ++half) {
          const std::int64_t first = c + 16 * half, at = (i + r) * kTile + first;
          Vector probability = exponential(load(w.s + at) * scale - load(lse + first));
          // a key sees queries from its own position on: those before it are masked
          if (diagonal) probability = Vector(_mm512_maskz_mov_ps(columns_after(i + r - 1, first), __m512(probability)));
          p[r][half] = __m512(probability);
          ds[r][half] = __m512(probability * (load(w.dp + at) - load(delta + first)) * scale);
        }
      for (int r = 0; r < 2; ++r) {
        store_pairs(w.p + (i + r) * kTilePairs + c / 2, round_32(p[r][0], p[r][1]));
        store_pairs(w.ds + (i + r) * kTilePairs + c / 2, round_32(ds[r][0], ds[r][1]));
      }
      for (int half = 0; half < 2; ++half) store_pairs(w.ds_along_rows + i / 2 * kTile + c + 16 * half, round_pairs(ds[0][half], ds[1][half]));
    }
}

/// Adds the head's part of dk and dv to w.dk and w.dv and writes its dq. w.k, w.v and w.k_transposed hold the group.
RELUME_INLINE void backward_head(const AttentionGradientArgs& args, const Head& h, const Extents& e, const BackwardScratch& w) {
  const AttentionLayout& l = args.layout;
  const float scale = 1.f / std::sqrt(static_cast<float>(l.head_dim));
  for (std::int64_t i = 0; i < e.tiles; ++i) {
    const TileRows q = tile_of(args.qkv, h.q, h.stride, l, i), dout = tile_of(args.dout, h.out, h.out_stride, l, i);
    pair_along_head(q, e.width, w.q_along_head + i * e.tile_pairs);
    pair_along_rows(q, e.width, w.q_along_rows + i * e.tile_pairs);
    pair_along_head(dout, e.width, w.dout_along_head + i * e.tile_pairs);
    pair_along_rows(dout, e.width, w.dout_along_rows + i * e.tile_pairs);
  }
  for (std::int64_t t = 0; t < e.padded; ++t) {
    float delta = 0;
    if (t < l.tokens) {
      const Bf16 *o = args.out.as<Bf16>() + h.out + t * h.out_stride, *g = args.dout.as<Bf16>() + h.out + t * h.out_stride;
#pragma omp simd reduction(+ : delta)
      for (std::int64_t d = 0; d < l.head_dim; ++d) delta += float(g[d]) * float(o[d]);
    }
    w.delta[t] = delta;
    w.lse[t] = t < l.tokens ? args.lse.as<float>()[h.lse + t] : 0.f;
  }
  zero(w.dq_transposed, e.padded * e.width);
  for (std::int64_t j = 0; j < e.tiles; ++j) {
    const Pair *k = w.k + j * e.tile_pairs, *v = w.v + j * e.tile_pairs, *k_transposed = w.k_transposed + j * e.tile_pairs;
    float *dk = w.dk + j * kTile * e.width, *dv = w.dv + j * kTile * e.width;
    for (std::int64_t i = j; i < e.tiles; ++i) {
      const std::int64_t at = i * e.tile_pairs;
      pair_product(kTile, kTile, e.width / 2, k, e.width / 2, w.q_along_head + at, kTile, w.s, kTile, false);
      pair_product(kTile, kTile, e.width / 2, v, e.width / 2, w.dout_along_head + at, kTile, w.dp, kTile, false);
      softmax_gradient(w, i == j, scale, w.lse + i * kTile, w.delta + i * kTile);
      pair_product(kTile, e.width, kTilePairs, w.p, kTilePairs, w.dout_along_rows + at, e.width, dv, e.width, true);
      pair_product(kTile, e.width, kTilePairs, w.ds, kTilePairs, w.q_along_rows + at, e.width, dk, e.width, true);
      pair_product(e.width, kTile, kTilePairs, k_transposed, kTilePairs, w.ds_along_rows, kTile, w.dq_transposed + i * kTile * e.width, kTile, true);
    }
  }
  // This head's q was copied and is not read again: dqkv may be qkv.
  for (std::int64_t t = 0; t < l.tokens; ++t) {
    const float* from = w.dq_transposed + t / kTile * kTile * e.width + t % kTile;
    Bf16* to = args.dqkv.as<Bf16>() + h.q + t * h.stride;
    for (std::int64_t d = 0; d < l.head_dim; ++d) put(to[d], from[d * kTile]);
  }
}

RELUME_INLINE void write_rows(const AttentionLayout& l, const Extents& e, const float* from, Bf16* to, std::int64_t stride) {
  for (std::int64_t t = 0; t < l.tokens; ++t)
#pragma omp simd
    for (std::int64_t d = 0; d < l.head_dim; ++d) put(to[t * stride + d], from[t * e.width + d]);
}

}  // namespace

std::int64_t attention_bf16_workspace(const AttentionLayout& l) { return omp_get_max_threads() * bytes_of_thread<ForwardScratch>(l); }

void attention_bf16(const AttentionArgs& args) {
  const AttentionLayout& l = args.layout;
  const Extents e(l);
  const std::int64_t tasks = args.qkv.shape[0] / l.tokens * l.kv_heads, per_group = l.heads / l.kv_heads;
  const std::int64_t thread_bytes = bytes_of_thread<ForwardScratch>(l);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    Carver carver(static_cast<char*>(args.workspace) + omp_get_thread_num() * thread_bytes);
    const ForwardScratch w(e, carver);
    const std::int64_t sequence = task / l.kv_heads, first = task % l.kv_heads * per_group;
    const Head group = head_of(l, sequence, first);
    for (std::int64_t j = 0; j < e.tiles; ++j) {
      pair_along_head(tile_of(args.qkv, group.k, group.stride, l, j), e.width, w.k_along_head + j * e.tile_pairs);
      pair_along_rows(tile_of(args.qkv, group.v, group.stride, l, j), e.width, w.v_along_rows + j * e.tile_pairs);
    }
    for (std::int64_t head = first; head < first + per_group; ++head) forward_head(args, head_of(l, sequence, head), e, w);
  }
}

std::int64_t attention_bf16_gradient_workspace(const AttentionLayout& l) {
  return omp_get_max_threads() * bytes_of_thread<BackwardScratch>(l);
}

void attention_bf16_gradient(const AttentionGradientArgs& args) {
  const AttentionLayout& l = args.layout;
  const Extents e(l);
  const std::int64_t tasks = args.qkv.shape[0] / l.tokens * l.kv_heads, per_group = l.heads / l.kv_heads;
  const std::int64_t thread_bytes = bytes_of_thread<BackwardScratch>(l);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    Carver carver(static_cast<char*>(args.workspace) + omp_get_thread_num() * thread_bytes);
    const BackwardScratch w(e, carver);
    const std::int64_t sequence = task / l.kv_heads, first = task % l.kv_heads * per_group;
    const Head group = head_of(l, sequence, first);
    for (std::int64_t j = 0; j < e.tiles; ++j) {
      const TileRows k = tile_of(args.qkv, group.k, group.stride, l, j);
      copy_rows(k, e.width, w.k + j * e.tile_pairs);
      copy_rows(tile_of(args.qkv, group.v, group.stride, l, j), e.width, w.v + j * e.tile_pairs);
      pair_along_rows(k, e.width, w.q_along_rows);  // of a head later: free now
      transpose_pairs(w.q_along_rows, e.width, w.k_transposed + j * e.tile_pairs);
    }
    zero(w.dk, e.padded * e.width);
    zero(w.dv, e.padded * e.width);
    for (std::int64_t head = first; head < first + per_group; ++head) backward_head(args, head_of(l, sequence, head), e, w);
    write_rows(l, e, w.dk, args.dqkv.as<Bf16>() + group.k, group.stride);
    write_rows(l, e, w.dv, args.dqkv.as<Bf16>() + group.v, group.stride);
  }
}

}  // namespace relume::cpu::RELUME_ISA
#endif
