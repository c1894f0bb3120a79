#include "relume/train/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "relume/base/error.h"
#include "relume/base/philox.h"

namespace relume {

GenerationShape sample_shape(const Config& c) {
  return {.context = std::min(kSamplePrompt + kSampleTokens, c.data.sequence_length), .part = std::min(kSamplePrompt, c.micro_batch_tokens())};
}

void reserve_generation(Tape& tape, const ModelConfig& model, const GenerationShape& shape, DType dtype) {
  for (const std::int64_t tokens : std::set{std::int64_t{1}, shape.part}) (void)generation_inputs(tape, model, tokens);
  for (std::int64_t layer = 0; layer < model.num_hidden_layers; ++layer) (void)key_value_cache(tape, model, layer, shape.context, dtype);
  (void)generation_logits(tape, model);
}

Generator::Generator(const ModelConfig& model, const ParameterLayout& layout, const GenerationShape& shape, const std::string& precision, Memory& memory)
    : model_(model), shape_(shape), memory_(memory), logits_(static_cast<std::size_t>(model.vocab_size)) {
  for (Recording* recording : {&part_, &single_}) {
    const std::int64_t tokens = recording == &part_ ? shape.part : 1;
    auto tape = std::make_unique<Tape>();
    Llama llama(*tape, model, layout, {.tokens = tokens, .dtype = dtype_of(precision), .training = false, .cache_tokens = shape.context});
    const Tensor last = llama.forward(RematConfig{});
    if (recording == &single_)
      llama.logits(last);
    else
      tape->keep_result(last);
    *recording = planned(std::move(tape), memory.backend().kernels());
    memory.add(*recording->tape, recording->plan);
  }
}

std::span<const float> Generator::read(std::span<const std::int32_t> tokens) {
  if (tokens.empty() || position_ + static_cast<std::int64_t>(tokens.size()) > shape_.context)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("[generate] {} tokens behind {}; the context holds {}", tokens.size(), position_, shape_.context));
  while (tokens.size() > 1) {  // the last one alone has logits to be read
    const auto n = std::min(tokens.size() - 1, static_cast<std::size_t>(shape_.part));
    run(part_, part_executor_, tokens.first(n), shape_.part);
    tokens = tokens.subspan(n);
  }
  std::fill(logits_.begin(), logits_.end(), 0.f);
  memory_.write(names::kLogits, logits_.data(), model_.vocab_size);  // the product is added to what is there
  run(single_, single_executor_, tokens, 1);
  memory_.read(names::kLogits, logits_.data(), model_.vocab_size);
  return logits_;
}

/// Rows behind the tokens are computed too; what they put into the caches is overwritten before anything attends to it.
void Generator::run(const Recording& recording, std::optional<Executor>& executor, std::span<const std::int32_t> tokens, std::int64_t padded) {
  if (!executor) executor.emplace(*recording.tape, recording.plan, memory_);
  const StepState state{.position = position_};
  std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
  ids.resize(static_cast<std::size_t>(padded));
  const auto table = rope_table(model_, padded, position_);
  memory_.write(names::kState, &state, 1);
  memory_.write(names::generation(names::kTokens, padded), ids.data(), padded);
  memory_.write(names::generation(names::kRopeTable, padded), table.data(), static_cast<std::int64_t>(table.size()));
  executor->run_micro_batch();
  position_ += static_cast<std::int64_t>(tokens.size());
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& o, std::int64_t index) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }))
    throw Error(ErrorCode::kRuntime, "[generate] a logit is not a number; the model's weights may be damaged");
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (o.temperature == 0) return *std::min_element(order.begin(), order.end(), more_likely);
  const std::size_t kept = o.top_k > 0 ? std::min(order.size(), static_cast<std::size_t>(o.top_k)) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), more_likely);
  order.resize(kept);
  std::vector<double> weight(kept);  // relative to the most likely
  double all = 0;
  for (std::size_t i = 0; i < kept; ++i)
    all += weight[i] = std::exp((static_cast<double>(logits[static_cast<std::size_t>(order[i])]) - static_cast<double>(logits[static_cast<std::size_t>(order[0])])) / o.temperature);
  if (o.top_p < 1) {
    double sum = 0;
    std::size_t n = 0;
    while (n < kept && sum < o.top_p * all) sum += weight[n++];
    weight.resize(std::max<std::size_t>(1, n));
    all = std::max(sum, weight[0]);
  }
  constexpr char kStream[] = "generate";
  const PhiloxBlock random = philox(stream_key(o.seed, kStream, sizeof(kStream) - 1), static_cast<std::uint64_t>(index));
  const double unit = (static_cast<double>(random.word[0] >> 5) * 67108864.0 + static_cast<double>(random.word[1] >> 6)) / 9007199254740992.0;  // 53 bits
  double left = unit * all;
  for (std::size_t i = 0; i + 1 < weight.size(); ++i)
    if ((left -= weight[i]) < 0) return order[i];
  return order[weight.size() - 1];
}

std::vector<std::int32_t> generate(Generator& generator, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                                   const std::function<bool(std::int32_t)>& each) {
  std::vector<std::int32_t> out;
  std::span<const std::int32_t> next = prompt;
  while (static_cast<std::int64_t>(out.size()) < options.max_tokens && generator.position() + static_cast<std::int64_t>(next.size()) <= generator.context()) {
    const std::int32_t token = sample_token(generator.read(next), options.sampling, static_cast<std::int64_t>(out.size()));
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    out.push_back(token);
    if (each && !each(token)) break;
    next = std::span(&out.back(), 1);
  }
  return out;
}

}  // namespace relume
