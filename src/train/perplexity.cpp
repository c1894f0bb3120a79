#include "relume/train/perplexity.h"

#include <fmt/format.h>

#include <algorithm>

#include "relume/base/error.h"
#include "relume/base/utf8.h"

namespace relume {

namespace {

/// One window: its first token, how many it has, and the first of its tokens that is scored (as a target).
struct Window {
  std::int64_t begin = 0, size = 0, first_scored = 1;  // first_scored is relative to begin
};

/// Windows of `length` inputs, of which window(i) says the part of the sequence. A token is the target of the input before it.
template <class At>
ScoringWindows make_windows(TokenSequence tokens, std::int64_t length, std::int64_t count, std::int64_t scored_each, std::int32_t bos, const At& window) {
  const auto next = [tokens, length, count, bos, window, i = std::int64_t{0}](std::int32_t* inputs, std::int32_t* targets) mutable {
    if (i == count) return false;
    const Window w = window(i++);
    for (std::int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<std::size_t>(w.begin + t);
      inputs[t] = t >= w.size ? 0 : t == 0 && bos >= 0 ? bos : (*tokens)[at];
      targets[t] = t + 1 >= w.size || t + 1 < w.first_scored ? -100 : (*tokens)[at + 1];
    }
    return true;
  };
  return {length, count, scored_each, next};
}

std::int64_t size_of(const TokenSequence& tokens) { return static_cast<std::int64_t>(tokens->size()); }

void require(std::int64_t have, std::int64_t need, const char* what) {
  if (have < need) throw Error(ErrorCode::kFile, fmt::format("{} tokens; {} needs at least {}; hint: more data, or a smaller --context", have, what, need));
}

}  // namespace

ScoringWindows shard_windows(TokenSequence tokens, std::int64_t context) {
  require(size_of(tokens), context + 1, "a window and its targets");
  // A window's last target lies behind its inputs: the window has a token more than the model sees.
  const std::int64_t count = (size_of(tokens) - 1) / context;
  return make_windows(tokens, context, count, context, -1, [context](std::int64_t i) { return Window{i * context, context + 1, 1}; });
}

ScoringWindows hf_windows(TokenSequence tokens, std::int64_t context, std::int64_t stride) {
  const std::int64_t n = size_of(tokens);
  require(n, 2, "a score");
  const bool disjoint = stride == context;
  const std::int64_t count = disjoint ? (n + context - 1) / context : 1 + std::max<std::int64_t>(0, (n - context + stride - 1) / stride);
  return make_windows(tokens, context, count, disjoint ? context - 1 : stride, -1, [=](std::int64_t i) {
    const std::int64_t begin = i * stride, end = std::min(begin + context, n), before = i == 0 ? 0 : std::min(begin - stride + context, n);
    return Window{begin, end - begin, std::max<std::int64_t>(1, before - begin)};
  });
}

ScoringWindows llamacpp_windows(TokenSequence tokens, std::int64_t context, std::int32_t bos) {
  require(size_of(tokens), 2 * context, "llama.cpp's perplexity (two chunks)");
  return make_windows(tokens, context, size_of(tokens) / context, context - context / 2 - 1, bos,
                      [context](std::int64_t i) { return Window{i * context, context, context / 2 + 1}; });
}

ScoringWindows llamacpp_stride_windows(TokenSequence tokens, std::int64_t context, std::int64_t stride) {
  const std::int64_t n = size_of(tokens), window = context + stride / 2;
  require(n, window + 1, "llama.cpp's perplexity with this stride");
  return make_windows(tokens, window, (n - window + stride - 1) / stride, stride, -1,
                      [=](std::int64_t i) { return Window{i * stride, window, window - stride}; });
}

std::int64_t count_words(std::string_view text) {
  std::int64_t words = 1;
  bool in_space = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool space = (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
                       c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
    words += space && !in_space;
    in_space = space;
  }
  return words;
}

}  // namespace relume
