#include "relume/train/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "relume/base/error.h"
#include "relume/base/permutation.h"

namespace relume {

DataLoader::DataLoader(const std::string& pattern, const Options& options)
    : options_(options), first_window_{0}, window_(static_cast<std::size_t>(options.length + 1)) {
  const TokenShard* shortest = nullptr;
  for (const std::string& path : match_files(pattern)) {
    shards_.emplace_back(path, options.form);
    tokens_ += shards_.back().tokens();
    first_window_.push_back(first_window_.back() + (shards_.back().tokens() - 1) / options.length);
  }
  for (const TokenShard& s : shards_)
    if (!shortest || s.tokens() < shortest->tokens()) shortest = &s;
  if (windows() == 0)
    throw Error(ErrorCode::kFile, fmt::format("{}: {} tokens; a window of sequence_length {} needs {}; hint: a shorter sequence_length, or more data",
                                              shortest->path(), shortest->tokens(), options.length, options.length + 1));
}

void DataLoader::next(std::int32_t* tokens, std::int32_t* targets) {
  const std::int64_t epoch = position_ / windows(), i = position_ % windows();
  constexpr char kStream[] = "data order";
  const std::uint64_t key = stream_key(options_.seed + static_cast<std::uint64_t>(epoch) * 0x9E3779B97F4A7C15u, kStream, sizeof(kStream) - 1);
  const std::int64_t window = options_.shuffle ? permute(i, windows(), key) : i;
  const auto shard = std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1;
  const std::int64_t first = (window - first_window_[static_cast<std::size_t>(shard)]) * options_.length;
  const TokenShard& file = shards_[static_cast<std::size_t>(shard)];
  file.read(first, options_.length + 1, options_.vocab_size, window_.data());
  std::copy(window_.begin(), window_.end() - 1, tokens);
  for (std::int64_t t = 0; t < options_.length; ++t) targets[t] = file.trained(first + t + 1) ? window_[static_cast<std::size_t>(t + 1)] : -100;
  ++position_;
}

std::string DataLoader::fingerprint() const {
  std::string text;
  for (const TokenShard& s : shards_) text += fmt::format("{}:{} ", std::filesystem::path(s.path()).filename().string(), s.tokens());
  return hash_bytes(text);
}

DataLoader::Options training_windows(const Config& c) {
  return {.length = c.data.sequence_length, .vocab_size = c.model.vocab_size, .shuffle = c.data.shuffle, .seed = static_cast<std::uint64_t>(c.seed),
          .form = parse_shard_form(c.data.format)};
}

DataLoader::Options validation_windows(const Config& c) {
  return {.length = c.data.sequence_length, .vocab_size = c.model.vocab_size, .form = parse_shard_form(c.data.format)};
}

}  // namespace relume
