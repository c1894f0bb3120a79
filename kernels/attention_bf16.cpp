// Causal flash attention in bf16 tiles for processors with vdpbf16ps, which multiplies pairs of bf16 and adds them to fp32.
// A product C += A B takes A as rows of pairs along the depth, and B as "paired rows": word (k, j) holds B(2k, j), B(2k+1, j).
// Tiles are transposed, a row for a key and a lane for a query: maxima and sums need no step across lanes, and every operand
// is a row or a pair of rows of something computed.
//   forward   S^T = K Q^T; online softmax, P^T rounded to bf16; O^T += V^T P^T.
//   backward  S^T = K Q^T, dP^T = V dO^T, P^T = exp(S^T scale - lse), dS^T = P^T (dP^T - D) scale; dV += P^T dO,
//             dK += dS^T Q, dQ^T += K^T dS^T.
// Of a tile on the diagonal the quarter that is masked whole is left out of the products.
// Maxima, sums and all accumulators are fp32. Queries past the end are zero in Q and dO and so add nothing.
#include "attention.h"

#if defined(__AVX512BF16__)
#include "transpose.h"

namespace relume::cpu::RELUME_ISA {

namespace {

using Pair = Word;  // two bf16, the lower one first
constexpr std::int64_t kTilePairs = kTile / 2;
constexpr float kLog2E = 1.44269504f;
constexpr float kExp2[] = {0.999999191f, 0.693121968f, 0.240249811f, 0.0559170392f, 0.00956051021f};  // least squares of the relative error on [-1/2, 1/2]

/// c (kRows, 16 kVectors) [+]= a b over `depth` pairs.
template <int kRows, int kVectors>
RELUME_INLINE void pair_block(std::int64_t depth, const Pair* a, std::int64_t lda, const Pair* b, std::int64_t ldb, float* c,
                              std::int64_t ldc, bool accumulate) {
  __m512 sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) sum[i][j] = accumulate ? _mm512_loadu_ps(c + i * ldc + j * 16) : _mm512_setzero_ps();
  for (std::int64_t k = 0; k < depth; ++k) {
    __m512i row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = load_words(b + k * ldb + j * 16);
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
  for (; j + 32 <= columns; j += 32) pair_columns<2>(rows, depth, a, lda, b + j, ldb, c + j, ldc, accumulate);
  for (; j < columns; j += 16) pair_columns<1>(rows, depth, a, lda, b + j, ldb, c + j, ldc, accumulate);
}

/// 32 floats as 32 bf16 in order.
RELUME_INLINE __m512i round_32(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }
/// Word j = (bf16 of a[j], bf16 of b[j]).
RELUME_INLINE __m512i round_pairs(__m512 a, __m512 b) {
  return interleave_16(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(b)));
}

/// 2^x to 4e-6 relative, far below the rounding to bf16 that follows; 0 for x < -150.
RELUME_INLINE __m512 exp2_coarse(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kExp2[4]), r, _mm512_set1_ps(kExp2[3]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[2]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[1]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[0]));
  return _mm512_scalef_ps(p, whole);
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
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) r[k] = load_row(x, i + k, c);
      transpose_16(r);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k)
        if (c + k < width / 2) store_words(to + (c + k) * kTile + i, r[k]);
    }
}

/// to (kTile / 2, width): word (i, c) = (row 2i, row 2i + 1) of column c, as the B of products along the rows.
RELUME_INLINE void pair_along_rows(const TileRows& x, std::int64_t width, Pair* to) {
  for (std::int64_t i = 0; i < kTilePairs; ++i)
    for (std::int64_t c = 0; c < width; c += 16) {
      const __m256i a = _mm512_castsi512_si256(load_row(x, 2 * i, c / 2)), b = _mm512_castsi512_si256(load_row(x, 2 * i + 1, c / 2));
      store_words(to + i * width + c, interleave_16(a, b));
    }
}

/// to (width, kTile / 2): row c = column c, in pairs of rows, as the A of products along the rows. `paired` is what
/// pair_along_rows made.
RELUME_INLINE void transpose_pairs(const Pair* paired, std::int64_t width, Pair* to) {
  for (std::int64_t i = 0; i < kTilePairs; i += 16)
    for (std::int64_t c = 0; c < width; c += 16) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) r[k] = load_words(paired + (i + k) * width + c);
      transpose_16(r);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) store_words(to + (c + k) * kTilePairs + i, r[k]);
    }
}

/// Rows of a head in bf16 from a transposed tile in fp32, (width, kTile), each column times its `scale`.
RELUME_INLINE void write_transposed(const float* from, const float* scale, std::int64_t rows, std::int64_t depth, Bf16* to,
                                    std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; i += 16)
    for (std::int64_t c = 0; c < depth; c += 16) {
      __m512i r[16];
      const __m512 factor = _mm512_loadu_ps(scale + i);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) r[k] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(from + (c + k) * kTile + i), factor));
      transpose_16(r);
      const auto mask = static_cast<__mmask16>(depth - c >= 16 ? 0xFFFF : (1 << (depth - c)) - 1);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k)
        if (i + k < rows)
          _mm256_mask_storeu_epi16(to + (i + k) * stride + c, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_castsi512_ps(r[k]))));
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
  Pair *k, *v_transposed;  // of the group
  Pair *q_along_head, *p;  // of a tile; p is paired along keys
  float *s, *o_transposed;

  RELUME_INLINE ForwardScratch(const Extents& e, Carver& c)
      : k(c.take<Pair>(e.tiles * e.tile_pairs)),
        v_transposed(c.take<Pair>(e.tiles * e.tile_pairs)),
        q_along_head(c.take<Pair>(e.tile_pairs)),
        p(c.take<Pair>(kTilePairs * kTile)),
        s(c.take<float>(kTile * kTile)),
        o_transposed(c.take<float>(e.width * kTile)) {}
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

/// Queries (columns first..first + 15 of the diagonal tile) that see key `row`: those from its own position on.
RELUME_INLINE __mmask16 queries_that_see(std::int64_t row, std::int64_t first) {
  const std::int64_t hidden = row - first;
  return hidden <= 0 ? static_cast<__mmask16>(0xFFFF) : hidden >= 16 ? static_cast<__mmask16>(0) : static_cast<__mmask16>(0xFFFF << hidden);
}

constexpr std::int64_t kHalf = kTile / 2;

/// c (keys, queries) = a (keys, width) b (width paired, queries); of a diagonal tile without keys 32.. for queries ..31.
RELUME_INLINE void scores(const Extents& e, const Pair* a, const Pair* b, bool diagonal, float* c) {
  const std::int64_t depth = e.width / 2;
  if (!diagonal) return pair_product(kTile, kTile, depth, a, depth, b, kTile, c, kTile, false);
  pair_product(kHalf, kTile, depth, a, depth, b, kTile, c, kTile, false);
  pair_product(kHalf, kHalf, depth, a + kHalf * depth, depth, b + kHalf, kTile, c + kHalf * kTile + kHalf, kTile, false);
}

/// c (width, queries) += a (width, keys in pairs) b (keys paired, queries), a diagonal tile as above.
RELUME_INLINE void add_over_keys(const Extents& e, const Pair* a, const Pair* b, bool diagonal, float* c) {
  if (!diagonal) return pair_product(e.width, kTile, kTilePairs, a, kTilePairs, b, kTile, c, kTile, true);
  pair_product(e.width, kHalf, kHalf / 2, a, kTilePairs, b, kTile, c, kTile, true);
  pair_product(e.width, kHalf, kTilePairs, a, kTilePairs, b + kHalf, kTile, c + kHalf, kTile, true);
}

/// c (keys, width) += a (keys, queries in pairs) b (queries paired, width), a diagonal tile as above.
RELUME_INLINE void add_over_queries(const Extents& e, const Pair* a, const Pair* b, bool diagonal, float* c) {
  if (!diagonal) return pair_product(kTile, e.width, kTilePairs, a, kTilePairs, b, e.width, c, e.width, true);
  pair_product(kHalf, e.width, kTilePairs, a, kTilePairs, b, e.width, c, e.width, true);
  pair_product(kHalf, e.width, kHalf / 2, a + kHalf * kTilePairs + kHalf / 2, kTilePairs, b + kHalf / 2 * e.width, e.width,
               c + kHalf * e.width, e.width, true);
}

/// One tile of scores becomes probabilities (unnormalised) in bf16; updates the running maximum (of scores times `scale`, which
/// includes log2 e), sum and output.
RELUME_INLINE void online_softmax(const ForwardScratch& w, const Extents& e, bool diagonal, float scale, float* maximum, float* sum) {
  for (std::int64_t c = 0; c < kTile; c += 16) {
    __m512 top = _mm512_set1_ps(-1e30f);
    for (std::int64_t i = 0; i < kTile; ++i) {
      const __mmask16 seen = diagonal ? queries_that_see(i, c) : static_cast<__mmask16>(0xFFFF);
      top = _mm512_mask_max_ps(top, seen, top, _mm512_loadu_ps(w.s + i * kTile + c));
    }
    const __m512 before = _mm512_loadu_ps(maximum + c);
    top = _mm512_max_ps(before, _mm512_mul_ps(top, _mm512_set1_ps(scale)));
    const __m512 shrink = exp2_coarse(_mm512_sub_ps(before, top));
    __m512 added = _mm512_setzero_ps();
    for (std::int64_t i = 0; i < kTile; i += 2) {
      __m512 p[2];
      for (int r = 0; r < 2; ++r) {
        p[r] = exp2_coarse(_mm512_fmsub_ps(_mm512_loadu_ps(w.s + (i + r) * kTile + c), _mm512_set1_ps(scale), top));
        if (diagonal) p[r] = _mm512_maskz_mov_ps(queries_that_see(i + r, c), p[r]);
        added = _mm512_add_ps(added, p[r]);
      }
      store_words(w.p + i / 2 * kTile + c, round_pairs(p[0], p[1]));
    }
    _mm512_storeu_ps(sum + c, _mm512_fmadd_ps(_mm512_loadu_ps(sum + c), shrink, added));
    _mm512_storeu_ps(maximum + c, top);
    if (_mm512_cmp_ps_mask(before, top, _CMP_NEQ_UQ))
      for (std::int64_t d = 0; d < e.width; ++d)
        _mm512_storeu_ps(w.o_transposed + d * kTile + c, _mm512_mul_ps(_mm512_loadu_ps(w.o_transposed + d * kTile + c), shrink));
  }
}

RELUME_INLINE void forward_head(const AttentionArgs& args, const Head& h, const Extents& e, const ForwardScratch& w) {
  const AttentionLayout& l = args.layout;
  const float scale = kLog2E / std::sqrt(static_cast<float>(l.head_dim));
  for (std::int64_t i = 0; i < e.tiles; ++i) {
    float maximum[kTile], sum[kTile];
    for (int r = 0; r < kTile; ++r) {
      maximum[r] = -1e30f;
      sum[r] = 0;
    }
    zero(w.o_transposed, e.width * kTile);
    const TileRows q = tile_of(args.qkv, h.q, h.stride, l, i);
    pair_along_head(q, e.width, w.q_along_head);
    for (std::int64_t j = 0; j <= i; ++j) {
      scores(e, w.k + j * e.tile_pairs, w.q_along_head, i == j, w.s);
      online_softmax(w, e, i == j, scale, maximum, sum);
      add_over_keys(e, w.v_transposed + j * e.tile_pairs, w.p, i == j, w.o_transposed);
    }
    float* lse = args.lse.as<float>() + h.lse + i * kTile;
    for (std::int64_t r = 0; r < kTile; ++r) {
      if (r < q.rows) lse[r] = maximum[r] / kLog2E + std::log(sum[r]);
      sum[r] = 1.f / sum[r];
    }
    write_transposed(w.o_transposed, sum, q.rows, l.head_dim, args.out.as<Bf16>() + h.out + i * kTile * h.out_stride, h.out_stride);
  }
}

/// P^T and dS^T of one tile in bf16, rows and paired rows, from S^T in w.s and dP^T in w.dp. lse is in units of log 2.
RELUME_INLINE void softmax_gradient(const BackwardScratch& w, bool diagonal, float scale, const float* lse, const float* delta) {
  for (std::int64_t i = 0; i < kTile; i += 2)
    for (std::int64_t c = 0; c < kTile; c += 32) {
      __m512 p[2][2], ds[2][2];  // [row][half]
      for (int r = 0; r < 2; ++r)
        for (int half = 0; half < 2; ++half) {
          const std::int64_t first = c + 16 * half, at = (i + r) * kTile + first;
          const __mmask16 seen = diagonal ? queries_that_see(i + r, first) : static_cast<__mmask16>(0xFFFF);
          const __m512 s = _mm512_loadu_ps(w.s + at), dp = _mm512_loadu_ps(w.dp + at);
          p[r][half] = _mm512_maskz_mov_ps(seen, exp2_coarse(_mm512_fmsub_ps(s, _mm512_set1_ps(scale * kLog2E), _mm512_loadu_ps(lse + first))));
          const __m512 scaled = _mm512_mul_ps(p[r][half], _mm512_set1_ps(scale));
          ds[r][half] = _mm512_maskz_mul_ps(seen, scaled, _mm512_sub_ps(dp, _mm512_loadu_ps(delta + first)));
        }
      for (int r = 0; r < 2; ++r) {
        store_words(w.p + (i + r) * kTilePairs + c / 2, round_32(p[r][0], p[r][1]));
        store_words(w.ds + (i + r) * kTilePairs + c / 2, round_32(ds[r][0], ds[r][1]));
      }
      for (int half = 0; half < 2; ++half) store_words(w.ds_along_rows + i / 2 * kTile + c + 16 * half, round_pairs(ds[0][half], ds[1][half]));
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
    w.delta[t] = delta_of<Bf16>(args, h, t);
    w.lse[t] = t < l.tokens ? args.lse.as<float>()[h.lse + t] * kLog2E : 0.f;
  }
  zero(w.dq_transposed, e.padded * e.width);
  for (std::int64_t j = 0; j < e.tiles; ++j) {
    const Pair *k = w.k + j * e.tile_pairs, *v = w.v + j * e.tile_pairs, *k_transposed = w.k_transposed + j * e.tile_pairs;
    float *dk = w.dk + j * kTile * e.width, *dv = w.dv + j * kTile * e.width;
    for (std::int64_t i = j; i < e.tiles; ++i) {
      const std::int64_t at = i * e.tile_pairs;
      scores(e, k, w.q_along_head + at, i == j, w.s);
      scores(e, v, w.dout_along_head + at, i == j, w.dp);
      softmax_gradient(w, i == j, scale, w.lse + i * kTile, w.delta + i * kTile);
      add_over_queries(e, w.p, w.dout_along_rows + at, i == j, dv);
      add_over_queries(e, w.ds, w.q_along_rows + at, i == j, dk);
      add_over_keys(e, k_transposed, w.ds_along_rows, i == j, w.dq_transposed + i * kTile * e.width);
    }
  }
  float one[kTile];
  for (float& x : one) x = 1.f;
  for (std::int64_t i = 0; i < e.tiles; ++i)  // this head's q was copied and is not read again: dqkv may be qkv
    write_transposed(w.dq_transposed + i * kTile * e.width, one, at_most(kTile, l.tokens - i * kTile), l.head_dim,
                     args.dqkv.as<Bf16>() + h.q + i * kTile * h.stride, h.stride);
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
  const std::int64_t thread_bytes = bytes_of_thread<ForwardScratch>(l);
  for_each_group(l, args.qkv.shape[0], [&](std::int64_t thread, const Head& group, auto for_each_head) {
    Carver carver(static_cast<char*>(args.workspace) + thread * thread_bytes);
    const ForwardScratch w(e, carver);
    for (std::int64_t j = 0; j < e.tiles; ++j) {
      copy_rows(tile_of(args.qkv, group.k, group.stride, l, j), e.width, w.k + j * e.tile_pairs);
      pair_along_rows(tile_of(args.qkv, group.v, group.stride, l, j), e.width, w.q_along_head);  // of a tile later: free now
      transpose_pairs(w.q_along_head, e.width, w.v_transposed + j * e.tile_pairs);
    }
    for_each_head([&](const Head& h) { forward_head(args, h, e, w); });
  });
}

std::int64_t attention_bf16_gradient_workspace(const AttentionLayout& l) {
  return omp_get_max_threads() * bytes_of_thread<BackwardScratch>(l);
}

void attention_bf16_gradient(const AttentionGradientArgs& args) {
  const AttentionLayout& l = args.layout;
  const Extents e(l);
  const std::int64_t thread_bytes = bytes_of_thread<BackwardScratch>(l);
  for_each_group(l, args.qkv.shape[0], [&](std::int64_t thread, const Head& group, auto for_each_head) {
    Carver carver(static_cast<char*>(args.workspace) + thread * thread_bytes);
    const BackwardScratch w(e, carver);
    for (std::int64_t j = 0; j < e.tiles; ++j) {
      const TileRows k = tile_of(args.qkv, group.k, group.stride, l, j);
      copy_rows(k, e.width, w.k + j * e.tile_pairs);
      copy_rows(tile_of(args.qkv, group.v, group.stride, l, j), e.width, w.v + j * e.tile_pairs);
      pair_along_rows(k, e.width, w.q_along_rows);  // of a head later: free now
      transpose_pairs(w.q_along_rows, e.width, w.k_transposed + j * e.tile_pairs);
    }
    zero(w.dk, e.padded * e.width);
    zero(w.dv, e.padded * e.width);
    for_each_head([&](const Head& h) { backward_head(args, h, e, w); });
    write_rows(l, e, w.dk, args.dqkv.as<Bf16>() + group.k, group.stride);
    write_rows(l, e, w.dv, args.dqkv.as<Bf16>() + group.v, group.stride);
  });
}

}  // namespace relume::cpu::RELUME_ISA
#endif
