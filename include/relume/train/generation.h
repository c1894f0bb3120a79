// Text from a model: prompts are read in parts, tokens follow one by one, keys and values are kept.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "relume/train/program.h"

namespace relume {

struct GenerationShape {
  std::int64_t context = 0;  ///< tokens the caches hold
  std::int64_t part = 64;    ///< tokens of a prompt read at a time
};

/// Reads a prompt and gives the logits of what follows. One sequence at a time.
class Generator {
 public:
  /// Plans its tapes and declares them to `memory`, which holds the model's parameters and is allocated later.
  Generator(const ModelConfig& model, const ParameterLayout& layout, const GenerationShape& shape, const std::string& precision, Memory& memory);

  /// Forgets the sequence.
  void restart() { position_ = 0; }
  /// Takes tokens to the end of the sequence; logits (vocab_size) of the next one, valid until the next call.
  /// Throws kInvalidArgument if the context is full, or for no tokens.
  [[nodiscard]] std::span<const float> read(std::span<const std::int32_t> tokens);
  [[nodiscard]] std::int64_t position() const { return position_; }  ///< tokens read
  [[nodiscard]] std::int64_t context() const { return shape_.context; }

 private:
  void run(const Recording& recording, std::optional<Executor>& executor, std::span<const std::int32_t> tokens, std::int64_t padded);
  ModelConfig model_;
  GenerationShape shape_;
  std::int64_t position_ = 0;
  Memory& memory_;
  Recording part_, single_;
  std::optional<Executor> part_executor_, single_executor_;
  std::vector<float> logits_;
};

/// Samples during training: tokens of the prompt and of its continuation, where the windows are that long. Parts are no longer than a
/// micro-batch, so that their arena fits into the one of training.
constexpr std::int64_t kSamplePrompt = 32, kSampleTokens = 96;
[[nodiscard]] GenerationShape sample_shape(const Config& config);

/// Declares what a Generator needs on a tape that is planned for the same memory.
void reserve_generation(Tape& tape, const ModelConfig& model, const GenerationShape& shape, DType dtype);

struct SamplingOptions {
  double temperature = 1;   ///< 0: the most likely token
  std::int64_t top_k = 0;   ///< only so many of the most likely; 0: all
  double top_p = 1;         ///< of these, the fewest whose probabilities reach this
  std::uint64_t seed = 0;
};

/// A token drawn from softmax(logits / temperature) cut to top_k, then to top_p, as transformers does. A pure function of logits,
/// options and `index`; ties go to the lower id. Throws kRuntime if a logit is NaN.
[[nodiscard]] std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t index);

struct GenerationOptions {
  std::int64_t max_tokens = 128;
  std::vector<std::int32_t> stop = {};  ///< ends the text; not part of it
  SamplingOptions sampling = {};
};

/// Continues a prompt until a stop token, max_tokens, or the end of the context; `each` gets every token as it comes and may return false
/// to stop. Returns the new tokens.
std::vector<std::int32_t> generate(Generator& generator, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                                   const std::function<bool(std::int32_t)>& each = {});

}  // namespace relume
