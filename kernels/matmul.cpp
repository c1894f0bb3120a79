// Matrix products: which form of the operands goes to oneDNN, and f64 (gradient checks) as the plain loop.
//
// oneDNN's fastest kernels read B in panels, and read A by rows; of a plain B it makes panels again for every block of rows,
// and a transposed A costs more still. So where the product is large enough, B is packed once in the call and a transposed A
// is turned, both in planned workspace: a pass over the operand, against 5-20 % of the product. A rule on shapes and the
// instruction set alone decides, never a timing: a choice that depended on noise would change bits from run to run.
#include "transpose.h"

namespace relume::cpu::RELUME_ISA {

namespace {

struct Extents {
  std::int64_t m, n, k;

  RELUME_INLINE explicit Extents(const MatmulArgs& args)
      : m(args.c.shape[0]), n(args.c.shape[1]), k(args.transpose_a ? args.a.shape[0] : args.a.shape[1]) {}
};

RELUME_INLINE void matmul_f64(const MatmulArgs& args) {
  const Extents e(args);
  const double *a = args.a.as<double>(), *b = args.b.as<double>(), *residual = args.residual.as<double>();
  double* c = args.c.as<double>();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < e.m; ++i)
    for (std::int64_t j = 0; j < e.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < e.k; ++l)
        sum += (args.transpose_a ? a[l * e.m + i] : a[i * e.k + l]) * (args.transpose_b ? b[j * e.k + l] : b[l * e.n + j]);
      if (residual) sum += residual[i * e.n + j];
      c[i * e.n + j] = args.accumulate ? c[i * e.n + j] + sum : sum;
    }
}

/// The product that adds to c, once the residual is copied there (copy_residual), for one with a residual; else itself.
RELUME_INLINE MatmulArgs without_residual(MatmulArgs args) {
  args.accumulate |= args.residual.shape.rank() > 0;
  args.residual = {};
  return args;
}

/// The product as oneDNN gets it, and where in the workspace the operands made for it are (bytes).
struct Prepared {
  MatmulArgs args;
  bool turn_a = false, pack_b = false;
  std::int64_t a_at = 0, b_at = 0, scratch_at = 0;

  RELUME_INLINE explicit Prepared(const MatmulArgs& given) : args(without_residual(given)) {
    const Extents e(given);
    [[maybe_unused]] const std::int64_t bytes = size_of(given.a.dtype), least_rows = 128;
#if defined(__AVX512F__)
    // f32 with B transposed: oneDNN's own panels cost nothing there (measured on Zen 4: plain 204, packed 190 GFLOP/s)
    pack_b = e.m >= least_rows && (bytes == 2 || !given.transpose_b) && e.n % kPanelColumns == 0 && e.k % (kPanelRows * 4 / bytes) == 0;
    turn_a = pack_b && given.transpose_a && e.m % 16 == 0;
#endif
    char* workspace = static_cast<char*>(given.workspace);
    if (turn_a) {
      b_at = round_up(e.m * e.k * bytes, 64);
      args.a = {workspace, given.a.dtype, {e.m, e.k}};
      args.transpose_a = false;
    }
    scratch_at = b_at + (pack_b ? round_up(e.n * e.k * bytes, 64) : 0);
    if (pack_b) {
      args.b = {workspace ? workspace + b_at : nullptr, given.b.dtype, {e.k, e.n}};
      args.transpose_b = false;
    }
    args.workspace = workspace ? workspace + scratch_at : nullptr;
  }
};

#if defined(__AVX512F__)
/// Panels of 64 columns; in a panel blocks of 16 words a column: word (k, j) is B(k, j), or the pair B(2k, j), B(2k + 1, j).
/// B is given as rows of `n` (f32, or bf16 to be paired).
RELUME_INLINE void pack_rows(const MatmulArgs& given, const Extents& e, Word* to) {
  const bool pairs = given.b.dtype == DType::bf16;
  const std::int64_t words = pairs ? e.k / 2 : e.k;
#pragma omp parallel for schedule(static)
  for (std::int64_t panel = 0; panel < e.n / kPanelColumns; ++panel)
    for (std::int64_t w = 0; w < words; ++w) {
      Word* row = to + (panel * words + w) * kPanelColumns;
      if (pairs) {
        const auto* low = given.b.as<std::uint16_t>() + 2 * w * e.n + panel * kPanelColumns;
        for (int j = 0; j < kPanelColumns; j += 16)
          store_words(row + j, interleave_16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + j)),
                                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + e.n + j))));
      } else {
        const Word* from = given.b.as<Word>() + w * e.n + panel * kPanelColumns;
        for (int j = 0; j < kPanelColumns; j += 16) store_words(row + j, load_words(from + j));
      }
    }
}

/// The same from B transposed: rows of `k`, so a word is one or two neighbours of a row.
RELUME_INLINE void pack_columns(const MatmulArgs& given, const Extents& e, Word* to) {
  const std::int64_t words = e.k * size_of(given.b.dtype) / 4;
  const Word* from = given.b.as<Word>();
#pragma omp parallel for schedule(static)
  for (std::int64_t panel = 0; panel < e.n / kPanelColumns; ++panel)
    for (std::int64_t w = 0; w < words; w += 16)
      for (int j = 0; j < kPanelColumns; j += 16) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) r[i] = load_words(from + (panel * kPanelColumns + j + i) * words + w);
        transpose_16(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) store_words(to + (panel * words + w + i) * kPanelColumns + j, r[i]);
      }
}

/// (k, m) to (m, k), in blocks of 64 columns: two whole cache lines of a bf16 row at a time.
RELUME_INLINE void turn(const MatmulArgs& given, const Extents& e, Word* to) {
  constexpr std::int64_t kColumns = 64;
  const bool pairs = given.a.dtype == DType::bf16;
  const std::int64_t words = pairs ? e.k / 2 : e.k;
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < e.m; first += kColumns)
    for (std::int64_t w = 0; w < words; w += 16)
      for (std::int64_t i = first; i < first + kColumns && i < e.m; i += 16) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int l = 0; l < 16; ++l) {
          if (pairs) {
            const auto* low = given.a.as<std::uint16_t>() + 2 * (w + l) * e.m + i;
            r[l] = interleave_16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)),
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + e.m)));
          } else {
            r[l] = load_words(given.a.as<Word>() + (w + l) * e.m + i);
          }
        }
        transpose_16(r);
#pragma GCC unroll 16
        for (int l = 0; l < 16; ++l) store_words(to + (i + l) * words + w, r[l]);
      }
}
#endif

/// c = residual, for a product that adds to c: faster than oneDNN's own addition of another operand.
RELUME_INLINE void copy_residual(const MatmulArgs& args) {
  const std::int64_t rows = args.c.shape[0], row_bytes = args.c.shape[1] * size_of(args.c.dtype);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(args.c.as<char>() + i * row_bytes, args.residual.as<char>() + i * row_bytes, static_cast<std::size_t>(row_bytes));
}

}  // namespace

void matmul_as_given(const MatmulArgs& args, Stream stream) {
  if (args.c.dtype == DType::f64) return matmul_f64(args);
  if (args.residual.data) copy_residual(args);
  onednn_matmul(without_residual(args), false, stream);
}

std::int64_t matmul_as_given_workspace(const MatmulArgs& args) {
  return args.c.dtype == DType::f64 ? 0 : onednn_matmul_workspace(without_residual(args), false);
}

void matmul_prepared(const MatmulArgs& args, Stream stream) {
  const Prepared p(args);
  onednn_matmul(p.args, p.pack_b, stream);
}

std::int64_t matmul_workspace(const MatmulArgs& args) {
  if (args.c.dtype == DType::f64) return 0;
  const Prepared p(args);
  return p.scratch_at + onednn_matmul_workspace(p.args, p.pack_b);
}

void matmul(const MatmulArgs& args, Stream stream) {
  if (args.c.dtype == DType::f64) return matmul_f64(args);
  const Prepared p(args);
#if defined(__AVX512F__)
  const Extents e(args);
  if (p.turn_a) turn(args, e, p.args.a.as<Word>());
  if (p.pack_b) args.transpose_b ? pack_columns(args, e, p.args.b.as<Word>()) : pack_rows(args, e, p.args.b.as<Word>());
#endif
  if (args.residual.data) copy_residual(args);
  onednn_matmul(p.args, p.pack_b, stream);
}

}  // namespace relume::cpu::RELUME_ISA
