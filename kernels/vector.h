// Fixed-width float vectors in GCC/clang vector extensions, as wide as the instruction set this file is compiled for,
// and a register-blocked product on small tiles.
#pragma once
#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kPanel = 4;  // 6 rows x 4 vectors: 24 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 8, kPanel = 2;  // 6 rows x 2 vectors: 12 accumulators of 16 registers
#else
constexpr int kLanes = 4, kPanel = 2;
#endif
constexpr int kTileRows = 6;

using Vector = float __attribute__((vector_size(4 * kLanes), may_alias));
using IntVector = std::int32_t __attribute__((vector_size(4 * kLanes), may_alias));
using LooseVector = float __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));  // any address

RELUME_INLINE Vector load(const float* p) { return *reinterpret_cast<const LooseVector*>(p); }
RELUME_INLINE void store(float* p, Vector v) { *reinterpret_cast<LooseVector*>(p) = v; }
RELUME_INLINE Vector splat(float x) { return x - Vector{}; }
RELUME_INLINE float max_of(Vector v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = m > v[i] ? m : v[i];
  return m;
}
RELUME_INLINE float sum_of(Vector v) {
  float s = 0;
  for (int i = 0; i < kLanes; ++i) s += v[i];
  return s;
}

RELUME_INLINE Vector exponential(Vector x) { return exponential_polynomial<IntVector>(x); }

/// A(i, k) = data[i * row + k * column]: one type reads a matrix and its transpose.
struct Operand {
  const float* data;
  std::int64_t row, column;
};

template <int kRows, int kVectors>
RELUME_INLINE void tile_block(std::int64_t depth, Operand a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                              bool accumulate) {
  Vector sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) sum[i][j] = accumulate ? load(c + i * ldc + j * kLanes) : Vector{};
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector bv[kVectors];
    for (int j = 0; j < kVectors; ++j) bv[j] = load(b + k * ldb + j * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vector av = splat(a.data[i * a.row + k * a.column]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] += av * bv[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) store(c + i * ldc + j * kLanes, sum[i][j]);
}

template <int kVectors>
RELUME_INLINE void tile_columns(std::int64_t rows, std::int64_t depth, Operand a, const float* b, std::int64_t ldb, float* c,
                                std::int64_t ldc, bool accumulate) {
  std::int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows)
    tile_block<kTileRows, kVectors>(depth, {a.data + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 2 <= rows; i += 2)
    tile_block<2, kVectors>(depth, {a.data + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < rows; ++i)
    tile_block<1, kVectors>(depth, {a.data + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, accumulate);
}

/// c (rows, columns) = [c +] a (rows, depth) b (depth, columns); columns must be a multiple of kLanes.
inline void tile_product(std::int64_t rows, std::int64_t columns, std::int64_t depth, Operand a, const float* b, std::int64_t ldb,
                         float* c, std::int64_t ldc, bool accumulate) {
  std::int64_t j = 0;
  for (; j + kPanel * kLanes <= columns; j += kPanel * kLanes)
    tile_columns<kPanel>(rows, depth, a, b + j, ldb, c + j, ldc, accumulate);
  for (; j < columns; j += kLanes) tile_columns<1>(rows, depth, a, b + j, ldb, c + j, ldc, accumulate);
}

}  // namespace relume::cpu::RELUME_ISA
