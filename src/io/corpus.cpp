#include "relume/io/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "relume/base/error.h"
#include "relume/io/file.h"
#include "relume/io/token_shard.h"

namespace relume {

namespace {

namespace fs = std::filesystem;

/// Writes one split, starting a new shard when the current one is full.
class Split {
 public:
  Split(const CorpusOptions& options, const char* name, std::int64_t vocab_size, CorpusSummary& summary)
      : options_(options), name_(name), vocab_size_(vocab_size), summary_(summary) {}

  void append(std::span<const std::int32_t> tokens) {
    tokens_ += static_cast<std::int64_t>(tokens.size());
    while (!tokens.empty()) {
      if (!shard_) shard_ = std::make_unique<TokenShardWriter>(fmt::format("{}/{}_{:06}.bin", options_.output, name_, files_++), vocab_size_);
      const auto room = static_cast<std::size_t>(options_.tokens_per_shard - shard_->tokens());
      shard_->append(tokens.first(std::min(room, tokens.size())));
      tokens = tokens.subspan(std::min(room, tokens.size()));
      if (shard_->tokens() == options_.tokens_per_shard) close();
    }
  }
  void close() {
    if (!shard_) return;
    shard_->close();
    summary_.files.push_back(fmt::format("{}/{}_{:06}.bin", options_.output, name_, files_ - 1));
    shard_.reset();
  }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  const CorpusOptions& options_;
  const char* name_;
  std::int64_t vocab_size_, tokens_ = 0;
  int files_ = 0;
  CorpusSummary& summary_;
  std::unique_ptr<TokenShardWriter> shard_;
};

/// The documents with the smallest hashes of their names, until they hold the wanted share of the bytes.
std::set<std::string> choose_validation(const std::vector<std::string>& files, double fraction, std::int64_t all_bytes) {
  std::set<std::string> chosen;
  if (fraction <= 0) return chosen;
  if (files.size() < 2)
    throw Error(ErrorCode::kFile, fmt::format("{}: a validation split is made of whole documents (files), and there is only one; hint: "
                                              "--validation-fraction 0, or split the text into files", files[0]));
  std::vector<std::pair<std::string, const std::string*>> order;
  for (const std::string& f : files) order.emplace_back(hash_bytes(fs::path(f).filename().string()), &f);
  std::sort(order.begin(), order.end());
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i + 1 < order.size() && static_cast<double>(bytes) < fraction * static_cast<double>(all_bytes); ++i) {
    bytes += static_cast<std::int64_t>(fs::file_size(*order[i].second));
    chosen.insert(*order[i].second);
  }
  return chosen;
}

void refuse_to_overwrite(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") && (name.starts_with("train_") || name.starts_with("val_")))
      throw Error(ErrorCode::kFile, fmt::format("{}: holds shards already ({}); nothing is overwritten. hint: another --out", directory, name));
  }
}

}  // namespace

std::vector<std::string> find_text_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (!fs::exists(input)) throw Error(ErrorCode::kFile, fmt::format("{}: does not exist", input));
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(input))
      if (entry.is_regular_file() && entry.path().extension() == ".txt") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) throw Error(ErrorCode::kFile, fmt::format("{}: no text files (*.txt) found", inputs.empty() ? "--in" : inputs[0]));
  return files;
}

CorpusSummary write_corpus(const CorpusOptions& options, const Tokenizer& tokenizer, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const std::vector<std::string> files = find_text_files(options.inputs);
  make_writable_directory(options.output);
  refuse_to_overwrite(options.output);
  std::int64_t all_bytes = 0;
  for (const std::string& f : files) all_bytes += static_cast<std::int64_t>(fs::file_size(f));
  const std::set<std::string> validation_files = choose_validation(files, options.validation_fraction, all_bytes);

  CorpusSummary summary;
  Split train(options, "train", tokenizer.vocab_size(), summary), validation(options, "val", tokenizer.vocab_size(), summary);
  for (const std::string& path : files) {
    const MappedFile file(path);
    std::vector<std::int32_t> ids =
        tokenizer.encode({reinterpret_cast<const char*>(file.bytes().data()), static_cast<std::size_t>(file.size())});
    if (tokenizer.bos_id() >= 0) ids.insert(ids.begin(), tokenizer.bos_id());
    const bool held_out = validation_files.count(path) > 0;
    (held_out ? validation : train).append(ids);
    ++(held_out ? summary.validation_documents : summary.documents);
    summary.bytes += file.size();
    if (progress) progress(summary.bytes, all_bytes);
  }
  train.close();
  validation.close();
  summary.train_tokens = train.tokens();
  summary.validation_tokens = validation.tokens();
  return summary;
}

}  // namespace relume
