#include "relume/io/corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "relume/base/error.h"
#include "relume/config/json_file.h"
#include "relume/io/file.h"
#include "relume/io/token_shard.h"

namespace relume {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOpenFiles = 256;

/// Writes one split, starting a new shard when the current one is full.
class Split {
 public:
  Split(const CorpusOptions& options, const char* name, std::int64_t vocab_size, CorpusSummary& summary)
      : options_(options), name_(name), vocab_size_(vocab_size), summary_(summary) {}

  /// A document. The first token is its BOS, where the tokenizer has one.
  void append(std::span<const std::int32_t> tokens) {
    tokens_ += static_cast<std::int64_t>(tokens.size());
    bool first = true;
    while (!tokens.empty()) {
      if (!shard_)
        shard_ = std::make_unique<TokenShardWriter>(path(files_++), vocab_size_, options_.form.value_or(default_shard_form(vocab_size_)), options_.mask_boundaries);
      const auto part = tokens.first(std::min(static_cast<std::size_t>(options_.tokens_per_shard - shard_->tokens()), tokens.size()));
      std::vector<bool> trained;
      if (options_.mask_boundaries) {
        trained.assign(part.size(), true);
        trained[0] = !first;
      }
      shard_->append(part, trained);
      tokens = tokens.subspan(part.size());
      first = false;
      if (shard_->tokens() == options_.tokens_per_shard) close();
    }
  }
  void close() {
    if (!shard_) return;
    shard_->close();
    summary_.files.push_back(path(files_ - 1));
    shard_.reset();
  }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  [[nodiscard]] std::string path(int i) const { return fmt::format("{}/{}_{:06}.bin", options_.output, name_, i); }
  const CorpusOptions& options_;
  const char* name_;
  std::int64_t vocab_size_, tokens_ = 0;
  int files_ = 0;
  CorpusSummary& summary_;
  std::unique_ptr<TokenShardWriter> shard_;
};

/// Which documents validate: of text files those with the smallest hashes of their names, until they hold the wanted share of the
/// bytes; lines of .jsonl files, which are many, by the hash alone.
class ValidationChoice {
 public:
  ValidationChoice(const std::vector<std::string>& files, double fraction) : fraction_(fraction) {
    if (fraction <= 0) return;
    std::vector<std::pair<std::string, std::string>> order;
    std::int64_t bytes = 0, chosen = 0;
    for (const std::string& f : files)
      if (!is_jsonl(f)) {
        order.emplace_back(hash_bytes(fs::path(f).filename().string()), f);
        bytes += static_cast<std::int64_t>(fs::file_size(f));
      }
    if (files.size() == 1 && order.size() == 1)
      throw Error(ErrorCode::kFile, fmt::format("{}: a validation split is made of whole documents (files), and there is only one; hint: "
                                                "--validation-fraction 0, or split the text into files", files[0]));
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i + 1 < order.size() && static_cast<double>(chosen) < fraction * static_cast<double>(bytes); ++i) {
      chosen += static_cast<std::int64_t>(fs::file_size(order[i].second));
      files_.insert(order[i].second);
    }
  }
  [[nodiscard]] bool file(const std::string& path) const { return files_.count(path) > 0; }
  [[nodiscard]] bool line(const std::string& path, std::int64_t number) const {
    if (fraction_ <= 0) return false;
    const std::string hash = hash_bytes(fmt::format("{}:{}", fs::path(path).filename().string(), number));
    return static_cast<double>(std::stoul(hash.substr(0, 8), nullptr, 16)) < fraction_ * 4294967296.0;
  }

 private:
  double fraction_;
  std::set<std::string> files_;
};

struct Document {
  std::string name;  // file, or file and line: for messages
  std::string_view text;
  std::string own;  // holds the text where it does not stand in the file as it is
  bool validation = false;
};

void refuse_to_overwrite(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") && (name.starts_with("train_") || name.starts_with("val_")))
      throw Error(ErrorCode::kFile, fmt::format("{}: holds shards already ({}); nothing is overwritten. hint: another --out", directory, name));
  }
}

/// Collects documents and encodes them together.
class Batch {
 public:
  Batch(const CorpusOptions& options, const Tokenizer& tokenizer, CorpusSummary& summary)
      : tokenizer_(tokenizer), summary_(summary), threads_(options.threads ? options.threads : omp_get_num_procs()),
        train_(options, "train", tokenizer.vocab_size(), summary), validation_(options, "val", tokenizer.vocab_size(), summary) {}

  void add(Document d) {
    bytes_ += static_cast<std::int64_t>(d.text.size() + d.own.size());
    documents_.push_back(std::move(d));
    if (bytes_ >= kBatchBytes) flush();
  }
  /// The texts of documents are not needed after this.
  void flush() {
    std::vector<std::vector<std::int32_t>> ids(documents_.size());
    std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
    for (std::size_t i = 0; i < documents_.size(); ++i) try {
        const Document& d = documents_[i];
        ids[i] = tokenizer_.encode(d.own.empty() ? d.text : d.own);
        if (tokenizer_.bos_id() >= 0) ids[i].insert(ids[i].begin(), tokenizer_.bos_id());
      } catch (const Error& e) {
#pragma omp critical
        if (!failure) failure = std::make_exception_ptr(Error(e.code(), fmt::format("{}: {}", documents_[i].name, e.what())));
      }
    if (failure) std::rethrow_exception(failure);
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      const bool held_out = documents_[i].validation;
      (held_out ? validation_ : train_).append(ids[i]);
      ++(held_out ? summary_.validation_documents : summary_.documents);
    }
    documents_.clear();
    bytes_ = 0;
  }
  void close() {
    flush();
    train_.close();
    validation_.close();
    summary_.train_tokens = train_.tokens();
    summary_.validation_tokens = validation_.tokens();
  }

 private:
  static constexpr std::int64_t kBatchBytes = 64 << 20;
  const Tokenizer& tokenizer_;
  CorpusSummary& summary_;
  int threads_;
  Split train_, validation_;
  std::vector<Document> documents_;
  std::int64_t bytes_ = 0;
};

}  // namespace

bool is_jsonl(const std::string& path) { return fs::path(path).extension() == ".jsonl"; }

std::string jsonl_document(std::string_view line, const std::string& name, const std::string& field) {
  const nlohmann::json j = config::parse_json(std::string(line), name, ErrorCode::kFile);
  if (!j.is_object() || !j.contains(field) || !j[field].is_string()) {
    std::vector<std::string> keys;
    if (j.is_object())
      for (const auto& [key, value] : j.items())
        if (value.is_string()) keys.push_back(key);
    throw Error(ErrorCode::kFile, fmt::format("{}: expected an object with a text \"{}\"; it has {}; hint: --field", name, field,
                                              keys.empty() ? "no texts" : fmt::format("\"{}\"", fmt::join(keys, "\", \""))));
  }
  return j[field];
}

std::vector<std::string> find_text_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (!fs::exists(input)) throw Error(ErrorCode::kFile, fmt::format("{}: does not exist", input));
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(input))
      if (entry.is_regular_file() && (entry.path().extension() == ".txt" || is_jsonl(entry.path().string()))) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) throw Error(ErrorCode::kFile, fmt::format("{}: no text files (*.txt, *.jsonl) found", inputs.empty() ? "--in" : inputs[0]));
  return files;
}

CorpusSummary write_corpus(const CorpusOptions& options, const Tokenizer& tokenizer, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const std::vector<std::string> files = find_text_files(options.inputs);
  make_writable_directory(options.output);
  refuse_to_overwrite(options.output);
  std::int64_t all_bytes = 0;
  for (const std::string& f : files) all_bytes += static_cast<std::int64_t>(fs::file_size(f));
  const ValidationChoice validates(files, options.validation_fraction);
  CorpusSummary summary;
  Batch batch(options, tokenizer, summary);
  auto report = [&, last = std::int64_t{0}](std::int64_t in_file, bool force) mutable {
    if (progress && (force || summary.bytes + in_file - last > 1 << 20)) progress(last = summary.bytes + in_file, all_bytes);
  };
  std::vector<MappedFile> open;  // what documents of the batch point into
  for (const std::string& path : files) {
    open.emplace_back(path);
    const std::string_view text(reinterpret_cast<const char*>(open.back().bytes().data()), static_cast<std::size_t>(open.back().size()));
    if (is_jsonl(path)) {
      std::int64_t number = 0;
      for (std::size_t at = 0; at < text.size(); report(static_cast<std::int64_t>(at), false)) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = text.substr(at, end - at);
        at = end + 1;
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string name = fmt::format("{}:{}", path, number);
        batch.add({.name = name, .text = {}, .own = jsonl_document(line, name, options.field), .validation = validates.line(path, number)});
      }
    } else {
      batch.add({.name = path, .text = text, .own = {}, .validation = validates.file(path)});
    }
    summary.bytes += open.back().size();
    if (open.size() >= kMostOpenFiles) {
      batch.flush();
      open.clear();
    }
    report(0, true);
  }
  batch.close();
  return summary;
}

}  // namespace relume
