// Global gradient norm and AdamW over flat lists of parameters.
#include "cpu.h"

namespace relume::cpu::RELUME_ISA {

namespace {
constexpr std::int64_t kSpan = 1 << 14;  // elements a thread takes at a time, and the unit in which squares are summed

RELUME_INLINE void round_span(const float* x, Bf16* y, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) put(y[i], x[i]);
}

}  // namespace

void round_to_bf16(const RoundToBf16Args& args, Stream) {
  const std::int64_t n = args.y.shape.elements(), spans = ceil_div(n, kSpan);
#pragma omp parallel for schedule(static)
  for (std::int64_t s = 0; s < spans; ++s)
    round_span(args.x.as<float>(), args.y.as<Bf16>(), s * kSpan, n - s * kSpan < kSpan ? n : (s + 1) * kSpan);
}

std::int64_t sum_of_squares_workspace(const SumOfSquaresArgs& args) { return ceil_div(args.x.shape.elements(), kSpan) * 8; }

void sum_of_squares(const SumOfSquaresArgs& args, Stream) {
  for_accumulator(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t n = args.x.shape.elements(), spans = ceil_div(n, kSpan);
    double* partial = static_cast<double*>(args.workspace);
#pragma omp parallel for schedule(static)
    for (std::int64_t s = 0; s < spans; ++s) {
      const T* x = args.x.as<T>() + s * kSpan;
      const std::int64_t count = n - s * kSpan < kSpan ? n - s * kSpan : kSpan;
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      partial[s] = sum;
    }
    double sum = 0;
    for (std::int64_t s = 0; s < spans; ++s) sum += partial[s];
    *args.y.as<double>() = sum;
  });
}

void adamw(const AdamwArgs& args, Stream) {
  StepResult& result = *args.result.as<StepResult>();
  const double norm = std::sqrt(*args.squares.as<double>());
  result.gradient_norm = norm;
  const std::int64_t n = args.weight.shape.elements(), spans = ceil_div(n, kSpan);
  float* gradient = args.gradient.as<float>();
  if (!std::isfinite(norm) || !std::isfinite(result.nll) || result.bad_scores > 0) {
    result.skipped = 1;
#pragma omp parallel for schedule(static)
    for (std::int64_t s = 0; s < spans; ++s)
      std::memset(gradient + s * kSpan, 0, static_cast<std::size_t>(n - s * kSpan < kSpan ? n - s * kSpan : kSpan) * sizeof(float));
    return;
  }
  const double t = static_cast<double>(++result.updates), rate = args.state.as<StepState>()->learning_rate;
  const float clip = args.grad_clip > 0 ? static_cast<float>(std::fmin(1.0, args.grad_clip / (norm + 1e-6))) : 1.f;
  const float beta1 = static_cast<float>(args.beta1), beta2 = static_cast<float>(args.beta2), eps = static_cast<float>(args.eps);
  const float step = static_cast<float>(rate / (1 - std::pow(args.beta1, t)));
  const float correction = static_cast<float>(1 / (1 - std::pow(args.beta2, t)));
  const float keep = static_cast<float>(1 - rate * args.weight_decay);
  const std::int64_t rounded = args.rounded.data ? args.rounded.shape.elements() : 0;
#pragma omp parallel for schedule(static)
  for (std::int64_t s = 0; s < spans; ++s) {
    const std::int64_t begin = s * kSpan, end = n - begin < kSpan ? n : begin + kSpan;
    const std::int64_t boundary = args.decayed < begin ? begin : args.decayed > end ? end : args.decayed;
    float *w = args.weight.as<float>(), *m = args.m.as<float>(), *v = args.v.as<float>();
    const auto update = [&](std::int64_t from, std::int64_t to, float decay) {
#pragma omp simd
      for (std::int64_t i = from; i < to; ++i) {
        const float g = gradient[i] * clip;
        gradient[i] = 0;
        m[i] = beta1 * m[i] + (1.f - beta1) * g;
        v[i] = beta2 * v[i] + (1.f - beta2) * g * g;
        w[i] = w[i] * decay - step * m[i] / (std::sqrt(v[i] * correction) + eps);
      }
    };
    update(begin, boundary, keep);
    update(boundary, end, 1.f);
    if (begin < rounded) round_span(w, args.rounded.as<Bf16>(), begin, rounded < end ? rounded : end);
  }
}

}  // namespace relume::cpu::RELUME_ISA
