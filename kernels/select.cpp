#include "relume/base/selection.h"

#include "cpu.h"
#include "relume/base/philox.h"

namespace relume::cpu::RELUME_ISA {

namespace {

template <class T>
RELUME_INLINE bool scores_are_good(const T* scores, std::int64_t n) {
  bool good = true;
  for (std::int64_t j = 0; j < n; ++j) good &= !is_bad_score(scores[j]);
  return good;
}

RELUME_INLINE std::uint64_t bits_of(float x) {
  std::uint32_t b;
  std::memcpy(&b, &x, 4);
  return b;
}
RELUME_INLINE std::uint64_t bits_of(double x) {
  std::uint64_t b;
  std::memcpy(&b, &x, 8);
  return b;
}

}  // namespace

// Bits of floats >= 0 are ordered like the floats, so the k-th largest score is found bit by bit without sorting.
void select_top_k(const SelectTopKArgs& args, Stream) {
  for_accumulator(args.scores.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t n = args.scores.shape[0], k = args.indices.shape[0];
    const T* scores = args.scores.as<T>();
    auto* indices = args.indices.as<std::int32_t>();
    if (!scores_are_good(scores, n)) {  // the step will be skipped; leave a valid selection behind
      ++args.result.as<StepResult>()->bad_scores;
      for (std::int64_t i = 0; i < k; ++i) indices[i] = static_cast<std::int32_t>(i);
      return;
    }
    std::uint64_t threshold = 0;
    for (int bit = static_cast<int>(sizeof(T)) * 8 - 2; bit >= 0; --bit) {
      const std::uint64_t candidate = threshold | std::uint64_t{1} << bit;
      std::int64_t at_least = 0;
      for (std::int64_t j = 0; j < n; ++j) at_least += bits_of(scores[j]) >= candidate;
      if (at_least >= k) threshold = candidate;
    }
    std::int64_t above = 0;
    for (std::int64_t j = 0; j < n; ++j) above += bits_of(scores[j]) > threshold;
    std::int64_t ties = k - above, taken = 0;
    for (std::int64_t j = 0; j < n && taken < k; ++j) {
      const std::uint64_t bits = bits_of(scores[j]);
      if (bits > threshold || (bits == threshold && ties-- > 0)) indices[taken++] = static_cast<std::int32_t>(j);
    }
  });
}

void select_sketch(const SelectSketchArgs& args, Stream) {
  for_accumulator(args.scores.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t n = args.scores.shape[0], k = args.indices.shape[0];
    const T* scores = args.scores.as<T>();
    auto *indices = args.indices.as<std::int32_t>(), *probabilities = args.probabilities.as<std::int32_t>();
    const StepState& state = *args.state.as<StepState>();
    if (!scores_are_good(scores, n)) {
      ++args.result.as<StepResult>()->bad_scores;
      for (std::int64_t i = 0; i < k; ++i) {
        indices[i] = static_cast<std::int32_t>(i);
        args.weights.as<T>()[i] = 1;
      }
      return;
    }
    water_fill(scores, n, k, args.min_probability, probabilities);
    constexpr char kStream[] = "sketch";
    const PhiloxBlock random = philox(stream_key(state.seed, kStream, sizeof(kStream) - 1), static_cast<std::uint64_t>(state.step),
                                      static_cast<std::uint64_t>(args.layer) << 8 | static_cast<std::uint64_t>(args.block));
    const std::uint64_t offset = coordinated_offset(random.word[0] % kDrawUnit, static_cast<std::uint64_t>(state.micro_batch),
                                                    static_cast<std::uint64_t>(state.micro_batches));
    systematic_draw(probabilities, n, k, offset, indices, args.weights.as<T>());
  });
}

}  // namespace relume::cpu::RELUME_ISA
