// The two small structs through which a replayed step talks to the host: what changes from step to step goes in, what
// the step found comes out. Both live in persistent device memory as u8 tensors.
#pragma once
#include <cstdint>

namespace relume {

/// Written by the host before each micro-batch; read by kernels.
struct StepState {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  std::int64_t micro_batches = 1;
  double learning_rate = 0;
  double inverse_targets = 0;  ///< 1 / number of targets in the whole step (all micro-batches): the weight of one token
  std::int64_t position = 0;   ///< generation: tokens that are in the key-value caches already
};

/// Accumulated by kernels; the host reads it after the step and clears the sums before the next.
struct StepResult {
  double nll = 0;           ///< sum over scored tokens, nats
  double nll_squared = 0;   ///< sum of squares, for the standard error of a perplexity
  double gradient_norm = 0; ///< global L2 norm before clipping
  std::int64_t bad_scores = 0;  ///< component score vectors with a value that is not finite
  std::int64_t skipped = 0;     ///< 1 if the update was not applied because something was not finite
  std::int64_t updates = 0;     ///< optimizer updates applied since the start of training (Adam's t); never cleared
};

}  // namespace relume
