// Shared by the CPU kernels. Every source in this folder is compiled once an instruction set, into namespace
// relume::cpu::RELUME_ISA, so that the linker never mixes code of two sets: helpers here are always inlined.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "relume/backend/kernels.h"

namespace relume::cpu {

/// A packed B: panels of kPanelColumns columns; in a panel, for every word of depth (an f32, or a pair of bf16 from two rows),
/// the words of those columns. The depth is a multiple of kPanelRows words.
constexpr std::int64_t kPanelColumns = 64, kPanelRows = 16;

/// c = op(a) op(b) [+ c] through oneDNN for f32 and bf16 (matmul_onednn.cpp, compiled once); no residual. With packed_b, b is
/// packed.
void onednn_matmul(const MatmulArgs&, bool packed_b, Stream);
std::int64_t onednn_matmul_workspace(const MatmulArgs&, bool packed_b);

}  // namespace relume::cpu

namespace relume::cpu::RELUME_ISA {

#define RELUME_INLINE inline __attribute__((always_inline))

/// Storage of a bfloat16: the upper half of a float. Kernels read it as a float, compute, and put() the result, rounded to
/// nearest even. (Written to the member: g++ does not vectorise assignments of whole structs.)
struct Bf16 {
  std::uint16_t bits;

  RELUME_INLINE operator float() const { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }
};

RELUME_INLINE std::uint16_t bf16_bits(float x) {
  const auto u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = u + 0x7FFFu + (u >> 16 & 1u);  // carries a NaN of all ones into -0: tested first
  return static_cast<std::uint16_t>(((u & 0x7FFFFFFFu) > 0x7F800000u ? u | 0x400000u : rounded) >> 16);
}

RELUME_INLINE void put(float& to, float x) { to = x; }
RELUME_INLINE void put(double& to, double x) { to = x; }
RELUME_INLINE void put(Bf16& to, float x) { to.bits = bf16_bits(x); }

/// The type in which sums and statistics of a T are kept, and in which kernels compute.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<Bf16> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

/// x as a T can hold it.
template <class T>
RELUME_INLINE Accumulator<T> rounded(Accumulator<T> x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bf16_bits(x)) << 16);
  else
    return x;
}

/// Calls f with a null pointer to the element type of a dtype that sums are kept in: float or double.
template <class F>
RELUME_INLINE void for_accumulator(DType dtype, F&& f) {
  if (dtype == DType::f64)
    f(static_cast<double*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

/// Calls f with a null pointer to the element type of dtype: float, double or Bf16.
template <class F>
RELUME_INLINE void for_dtype(DType dtype, F&& f) {
  if (dtype == DType::f64)
    f(static_cast<double*>(nullptr));
  else if (dtype == DType::bf16)
    f(static_cast<Bf16*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

/// exp with relative error about 1e-7 for x in [-87, 88], clamped outside; of a float or of a vector of floats (with Int the
/// integers of the same width). Inlined so that loops vectorise: libm's expf is a call an element.
/// Source: Cephes expf (argument reduction by ln 2 in two parts, degree-6 polynomial).
template <class Int, class Real>
RELUME_INLINE Real exponential_polynomial(Real x) {
  const Real low = Real{} - 87.f, high = Real{} + 88.f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Real shifted = x * 1.44269504f + 12582912.f;  // adds 1.5 * 2^23: rounds to an integer
  const Int n = __builtin_bit_cast(Int, shifted) - 0x4B400000;  // the bits of 12582912.f
  const Real whole = shifted - 12582912.f;
  Real r = x - whole * 0.693359375f;
  r = r + whole * 2.12194440e-4f;
  Real p = Real{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  return __builtin_bit_cast(Real, __builtin_bit_cast(Int, p) + (n << 23));
}

RELUME_INLINE float exponential(float x) { return exponential_polynomial<std::int32_t>(x); }
RELUME_INLINE double exponential(double x) { return std::exp(x); }

template <class T>
RELUME_INLINE T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

RELUME_INLINE std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
RELUME_INLINE std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// One function a kernel, in the order of the table.
void add(const AddArgs&, Stream);
void embedding(const EmbeddingArgs&, Stream);
void embedding_gradient(const EmbeddingGradientArgs&, Stream);
void rms_norm(const RmsNormArgs&, Stream);
void rms_norm_gradient(const RmsNormGradientArgs&, Stream);
std::int64_t rms_norm_gradient_workspace(const RmsNormGradientArgs&);
void matmul(const MatmulArgs&, Stream);
std::int64_t matmul_workspace(const MatmulArgs&);
void matmul_as_given(const MatmulArgs&, Stream);
std::int64_t matmul_as_given_workspace(const MatmulArgs&);
void matmul_prepared(const MatmulArgs&, Stream);
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

}  // namespace relume::cpu::RELUME_ISA
